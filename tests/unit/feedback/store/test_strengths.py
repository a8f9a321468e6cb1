"""Strengths belong to choices of a side."""

from pathlib import Path
from typing import Any

import pytest

from feedback.judgments import read_judgments
from feedback.store.exporting import export


@pytest.mark.parametrize("choice", ["tie", "both_bad", "skip"])
def test_an_answer_for_neither_has_no_strength_and_its_export_can_be_read(
    desk: Any, make_pairs: Any, tmp_path: Path, choice: str
) -> None:
    """Somebody chose a strength first and a tie then; a file with both is refused as a whole."""
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.submit(desk.serve("ana"), choice, strength=3)

    assert desk.sql("SELECT choice, strength FROM labels") == [(choice, None)]
    with desk.database.writing() as connection:
        (tmp_path / "j.jsonl").write_text(export(connection, "r1", "judgments").text)
    assert [one.choice for one in read_judgments(tmp_path / "j.jsonl")] == [choice]
