"""The rules of the gate, as functions of the table of measures: True where a row passes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from preferences.personal_data import KINDS
from preferences.records import TIE
from preferences.row_hashes import row_hashes


@dataclass(frozen=True, slots=True)
class Rule:
    """One check of each row."""

    name: str
    reason: str
    """What is wrong with a row that breaks it, for people."""
    columns: tuple[str, ...]
    keeps: Callable[[pd.DataFrame], "pd.Series[bool]"]


def _joined(table: pd.DataFrame, *names: str) -> NDArray[np.uint64]:
    return row_hashes([table[name].to_numpy() for name in names])


def filled(table: pd.DataFrame) -> "pd.Series[bool]":
    """Both responses have a visible character."""
    return (table["chosen_characters"] > 0) & (table["rejected_characters"] > 0)


def different(table: pd.DataFrame) -> "pd.Series[bool]":
    """The responses differ in more than case and white space."""
    return table["chosen"] != table["rejected"]


def consistent(table: pd.DataFrame) -> "pd.Series[bool]":
    """No row has the same prompt and responses with the opposite label; ties have none."""
    decided = ~table["tie"]
    swapped = _joined(table[decided], "prompt", "rejected", "chosen")
    opposed = np.isin(_joined(table, "prompt", "chosen", "rejected"), swapped)
    return ~(different(table) & decided & opposed)


def first(table: pd.DataFrame) -> "pd.Series[bool]":
    """No earlier row has the same prompt, responses and label; a tie's responses have no order."""
    tie = table["label"] == TIE
    sides = table[["chosen", "rejected"]]
    hashes = row_hashes(
        [
            table["prompt"].to_numpy(),
            sides["chosen"].where(~tie, sides.min(axis=1)).to_numpy(),
            sides["rejected"].where(~tie, sides.max(axis=1)).to_numpy(),
            table["label"].to_numpy(dtype=np.float64).view(np.int64),
        ]
    )
    return ~pd.Series(hashes, index=table.index).duplicated(keep="first")


def on_one_side(table: pd.DataFrame) -> "pd.Series[bool]":
    """All rows of the prompt are on the train side, or all are held out."""
    sides = table.groupby("prompt")["heldout"]
    return sides.transform("min") == sides.transform("max")


def not_evaluated(table: pd.DataFrame) -> "pd.Series[bool]":
    """The prompt is not an evaluation prompt, or the row is held out."""
    return ~table["in_evaluation"] | table["heldout"]


def without(defect: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    """The row does not have this defect."""
    return lambda table: ~table[defect]


def in_order(table: pd.DataFrame) -> "pd.Series[bool]":
    """The row is not on a cycle of three or more responses; contradictions are cycles of two.

    In the graph of a prompt's responses, with edges from better to worse, an edge is on a cycle if
    and only if both its ends are in the same strongly connected component.
    """
    arrows = consistent(table) & different(table) & ~table["tie"]
    ends = [_joined(table[arrows], "prompt", side) for side in ("chosen", "rejected")]
    responses, codes = np.unique(np.concatenate(ends), return_inverse=True)
    better, worse = np.split(codes, 2)
    size = (len(responses), len(responses))
    graph = coo_array((np.ones(len(better), dtype=np.int8), (better, worse)), shape=size)
    _, component = connected_components(graph, directed=True, connection="strong")
    keeps = pd.Series(data=True, index=table.index)
    keeps[arrows] = component[better] != component[worse]
    return keeps


RULES = (
    Rule(
        "blank_responses",
        "a response has no visible character",
        ("chosen_characters", "rejected_characters"),
        filled,
    ),
    Rule(
        "identical_responses",
        "the responses differ only in case and white space, or not at all",
        ("chosen", "rejected"),
        different,
    ),
    Rule(
        "identical_tokens",
        "the responses have the same tokens within the model's limit",
        ("same_tokens", "prompt"),
        without("same_tokens"),
    ),
    Rule(
        "contradictions",
        "the same pair also occurs with the opposite label",
        ("prompt", "chosen", "rejected", "tie"),
        consistent,
    ),
    Rule(
        "duplicates",
        "the same pair with the same label occurs earlier",
        ("prompt", "chosen", "rejected", "label"),
        first,
    ),
    Rule(
        "split_leaks",
        "the prompt is on both the train side and the held-out side",
        ("prompt", "heldout"),
        on_one_side,
    ),
    Rule(
        "near_leaks",
        "the prompt is on the train side and nearly equals a held-out or evaluation prompt",
        ("near_leak", "prompt"),
        without("near_leak"),
    ),
    Rule(
        "extra_turns",
        "a response continues with another speaker's turn",
        ("extra_turn", "prompt"),
        without("extra_turn"),
    ),
    Rule(
        "damaged_text", "a response was decoded wrongly", ("damaged", "prompt"), without("damaged")
    ),
    Rule(
        "html_remains",
        "a response contains HTML tags or entities",
        ("html", "prompt"),
        without("html"),
    ),
    Rule(
        "other_language",
        "a response is in another language or script than its prompt or the other response",
        ("other_language", "prompt"),
        without("other_language"),
    ),
    Rule(
        "token_limit",
        "prompt and response exceed the model's token limit",
        ("over_limit", "prompt"),
        without("over_limit"),
    ),
    Rule(
        "personal_data",
        f"a response contains personal data or an access key: {', '.join(KINDS.values())}",
        ("personal", "prompt"),
        without("personal"),
    ),
    Rule(
        "cycles",
        "responses to the prompt are preferred to each other in a cycle",
        ("prompt", "chosen", "rejected", "tie"),
        in_order,
    ),
    Rule(
        "near_duplicates",
        "nearly the same row occurs earlier",
        ("near_duplicate", "prompt"),
        without("near_duplicate"),
    ),
    Rule(
        "evaluation_leaks",
        "the prompt is used to train the reward model and to evaluate the policy",
        ("in_evaluation", "heldout"),
        not_evaluated,
    ),
)
