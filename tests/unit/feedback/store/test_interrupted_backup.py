"""A pair of two rounds, and a backup after one that was killed, or without room."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feedback.store.backup import back_up

ROOT = Path(__file__).resolve().parents[4]


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


def test_an_answer_that_comes_late_is_taken_while_another_round_has_room(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1, key="r1"))
    desk.publish(make_pairs(1, key="r2"))
    task = desk.serve("ana")
    desk.publish(make_pairs(1, key="r1", start=50))
    with desk.database.writing() as connection:
        connection.exec_driver_sql("UPDATE assignments SET state = 'free'")

    desk.submit(task)

    assert desk.progress("r2").complete


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_backup_that_was_killed_does_not_stop_the_next_one(
    desk: Any, make_pairs: Any, store: str, tmp_path: Path
) -> None:
    desk.publish(make_pairs(1))
    old, new = tmp_path / ".copy.db.a.part", tmp_path / ".copy.db.b.part"
    for part in (old, new):
        part.touch()
    os.utime(old, (0, 0))

    assert back_up(store, tmp_path / "copy.db") == 0

    # The other may be somebody's who is at it.
    assert sorted(path.name for path in tmp_path.glob(".copy*")) == [new.name]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_disk_without_room_is_nothing_against_the_store(
    desk: Any, make_pairs: Any, store: str, tmp_path: Path
) -> None:
    desk.publish(make_pairs(1))
    command = [sys.executable, "-m", "feedback", "backup", str(tmp_path / "copy.db")]

    done = subprocess.run(
        [*command, "--store", store],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert f"cannot be copied to {tmp_path / 'copy.db'}: " in done.stderr
    assert "not a labelling store" not in done.stderr
    assert not list(tmp_path.glob("*copy*"))
