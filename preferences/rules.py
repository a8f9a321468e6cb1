"""The rules of the gate as functions of the table of measures: True where a row keeps the rule."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from preferences.row_hashes import row_hashes


@dataclass(frozen=True, slots=True)
class Rule:
    """One question about each row."""

    name: str
    reason: str
    """Why a row that breaks it is set aside, for people."""
    columns: tuple[str, ...]
    keeps: Callable[[pd.DataFrame], "pd.Series[bool]"]


def _joined(table: pd.DataFrame, *names: str) -> NDArray[np.uint64]:
    return row_hashes([table[name].to_numpy() for name in names])


def filled(table: pd.DataFrame) -> "pd.Series[bool]":
    """Both answers have something to see."""
    return (table["chosen_characters"] > 0) & (table["rejected_characters"] > 0)


def different(table: pd.DataFrame) -> "pd.Series[bool]":
    """The answers differ in more than case and white space."""
    return table["chosen"] != table["rejected"]


def consistent(table: pd.DataFrame) -> "pd.Series[bool]":
    """No row has the same prompt and answers with the opposite label; a tie has none."""
    decided = ~table["tie"]
    swapped = _joined(table[decided], "prompt", "rejected", "chosen")
    opposed = np.isin(_joined(table, "prompt", "chosen", "rejected"), swapped)
    return ~(different(table) & decided & opposed)


def first(table: pd.DataFrame) -> "pd.Series[bool]":
    """No row before has the same prompt, answers and label."""
    pairs = pd.Series(_joined(table, "prompt", "chosen", "rejected"), index=table.index)
    return ~pairs.duplicated(keep="first")


def on_one_side(table: pd.DataFrame) -> "pd.Series[bool]":
    """All rows of the prompt are in train, or all are held out."""
    sides = table.groupby("prompt")["heldout"]
    return sides.transform("min") == sides.transform("max")


def not_evaluated(table: pd.DataFrame) -> "pd.Series[bool]":
    """The prompt is no evaluation prompt, or the row is held out and trains nothing."""
    return ~table["in_evaluation"] | table["heldout"]


def without(defect: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    """The row does not have this defect."""
    return lambda table: ~table[defect]


def in_order(table: pd.DataFrame) -> "pd.Series[bool]":
    """The row is on no circle of three or more answers; contradictions are circles of two.

    In the graph of a prompt's answers, with an arrow from better to worse, an arrow is on a circle
    exactly if both its ends are in one strongly connected component.
    """
    arrows = consistent(table) & different(table) & ~table["tie"]
    ends = [_joined(table[arrows], "prompt", side) for side in ("chosen", "rejected")]
    answers, codes = np.unique(np.concatenate(ends), return_inverse=True)
    better, worse = np.split(codes, 2)
    size = (len(answers), len(answers))
    graph = coo_array((np.ones(len(better), dtype=np.int8), (better, worse)), shape=size)
    _, component = connected_components(graph, directed=True, connection="strong")
    keeps = pd.Series(data=True, index=table.index)
    keeps[arrows] = component[better] != component[worse]
    return keeps


RULES = (
    Rule(
        "blank_answers",
        "an answer has no visible character",
        ("chosen_characters", "rejected_characters"),
        filled,
    ),
    Rule(
        "identical_answers",
        "the answers differ at most in case and white space",
        ("chosen", "rejected"),
        different,
    ),
    Rule(
        "identical_tokens",
        "the answers are the same tokens within the model's limit",
        ("same_tokens", "prompt"),
        without("same_tokens"),
    ),
    Rule(
        "contradictions",
        "the same pair is there with the opposite label",
        ("prompt", "chosen", "rejected", "tie"),
        consistent,
    ),
    Rule(
        "duplicates",
        "the same pair with the same label is there before",
        ("prompt", "chosen", "rejected"),
        first,
    ),
    Rule(
        "split_leaks",
        "the prompt is on the train side and on the held-out side",
        ("prompt", "heldout"),
        on_one_side,
    ),
    Rule(
        "near_leaks",
        "a prompt of the train side is nearly one that is held out or evaluated on",
        ("near_leak", "prompt"),
        without("near_leak"),
    ),
    Rule(
        "extra_turns",
        "an answer goes on to speak for somebody else",
        ("extra_turn", "prompt"),
        without("extra_turn"),
    ),
    Rule(
        "damaged_text", "an answer was decoded wrongly", ("damaged", "prompt"), without("damaged")
    ),
    Rule(
        "html_remains",
        "tags or entities of HTML stand in an answer",
        ("html", "prompt"),
        without("html"),
    ),
    Rule(
        "other_language",
        "an answer is in another language or script than its prompt or the other answer",
        ("other_language", "prompt"),
        without("other_language"),
    ),
    Rule(
        "token_limit",
        "prompt and answer have more tokens than the model is trained with",
        ("over_limit", "prompt"),
        without("over_limit"),
    ),
    Rule(
        "personal_data",
        "an answer has personal data or an access key",
        ("personal", "prompt"),
        without("personal"),
    ),
    Rule(
        "cycles",
        "answers to the prompt are preferred to each other in a circle",
        ("prompt", "chosen", "rejected", "tie"),
        in_order,
    ),
    Rule(
        "near_duplicates",
        "nearly the same row is there before",
        ("near_duplicate", "prompt"),
        without("near_duplicate"),
    ),
    Rule(
        "evaluation_leaks",
        "the prompt trains the reward model and evaluates the policy",
        ("in_evaluation", "heldout"),
        not_evaluated,
    ),
)
