"""A pair of two rounds, and a backup after one that was killed."""

from pathlib import Path
from typing import Any

import pytest

from feedback.store.backup import back_up


def test_an_answer_to_a_pair_that_another_round_still_needs_is_taken(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1, key="r1"))
    desk.publish(make_pairs(1, key="r2"))
    task = desk.serve("ana")
    assert task.round == "r1"
    desk.publish(make_pairs(1, key="r1", start=50))
    assert desk.progress("r2").missing == 1

    desk.submit(task)  # Refused: "this pair has been judged meanwhile and needs no further answer"

    assert desk.progress("r2").complete


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_backup_that_was_killed_does_not_stop_the_next_one(
    desk: Any, make_pairs: Any, store: str, tmp_path: Path
) -> None:
    desk.publish(make_pairs(1))
    (tmp_path / ".copy.db.part").touch()
    assert back_up(store, tmp_path / "copy.db") == 0
