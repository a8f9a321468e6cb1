"""Each side of a judgment in the forms of others: its text, and whether it was cut."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest

from feedback.formats.exchange import from_trl, to_csv, to_trl
from preferences.records import Choice, Judgment, text_hash


def said(pair: Any, choice: Choice, **changes: Any) -> Judgment:
    answer_a = text_hash(pair.response_a)
    return Judgment.of(
        pair, annotator_id="ana", kind="human", choice=choice, answer_a=answer_a, **changes
    )


@pytest.mark.parametrize("choice", ["a", "b"])
def test_a_preferred_response_takes_along_whether_it_was_cut(
    make_pairs: Any, choice: Choice
) -> None:
    pair = replace(make_pairs(1)[0], finished_a=False)
    (row,) = to_trl([said(pair, choice)], {pair.pair_id: pair})
    a, b = (pair.response_a, False), (pair.response_b, True)
    chosen, rejected = (a, b) if choice == "a" else (b, a)
    assert (row["chosen"], row["chosen_finished"]) == chosen
    assert (row["rejected"], row["rejected_finished"]) == rejected


def test_a_table_says_which_response_was_cut_and_no_cell_is_a_formula(make_pairs: Any) -> None:
    pair = replace(make_pairs(1)[0], response_b="\t=1+1", finished_b=False)
    skipped = said(pair, "skip", reason="\r=2+2")
    _, cells = csv.reader(io.StringIO(to_csv([skipped], {pair.pair_id: pair}), newline=""))
    assert cells[3:] == [
        "", "'\r=2+2", "prompt 0", "answer 0 a", "'\t=1+1", "yes", "cut",
    ]  # fmt: skip


def test_a_line_end_in_a_text_begins_no_row_whose_first_cell_would_be_a_formula(
    make_pairs: Any,
) -> None:
    for end in ("\r", "\n", "\r\n"):
        pair = replace(make_pairs(1)[0], response_a=f"Dear Ana{end}=1+1")
        table = to_csv([said(pair, "a")], {pair.pair_id: pair})
        _, cells = csv.reader(io.StringIO(table, newline=""))
        assert cells[6] == pair.response_a
        assert f'"Dear Ana{end}=1+1"' in table


@pytest.mark.parametrize(
    ("label", "strength", "taken"),
    [(1, 3, ("a", 3)), (0.9, 5, ("a", None)), (0.5, 3, ("tie", None))],
)
def test_a_row_of_trl_is_a_choice_or_a_tie_and_a_tie_has_no_strength(
    label: float, strength: int, taken: tuple[str, int | None]
) -> None:
    row = {"prompt": "p", "chosen": "x", "rejected": "y", "label": label, "strength": strength}
    (one,) = from_trl([("f:1", row)], "r1", source="s")
    assert (one.choice, one.strength) == taken
