"""The page's fuzzer finds planted faults that only several fitting steps bring out."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from benchmarks.fuzz_page_steps import run_seed
from feedback.store import rounds, submissions
from feedback.store.assignments import Task, find_task
from feedback.store.submissions import WITHDRAWN, Submission

write, written_before = submissions._write, submissions._written_before


def answered_again_in_another_browser(
    connection: Connection, task: Task, revision: int, **values: Any
) -> None:
    """An error after submit, undo and submit of one pair, the last in another browser."""
    this = (task.assignment_id,)
    query = "SELECT submission_key FROM labels WHERE assignment_id = ? AND revision = 1"
    first = connection.exec_driver_sql(query, this).scalar()
    browser, _, _ = values["submission_key"].partition("-")
    if revision > 2 and values["choice"] != WITHDRAWN and not str(first).startswith(browser):
        raise RuntimeError("planted")
    write(connection, task, revision, **values)


def undone_and_sent_again(
    connection: Connection, annotator_id: str, given: Submission, choice: str
) -> bool:
    """An error when an answer is sent again that has been undone in between."""
    known = written_before(connection, annotator_id, given, choice)
    task = find_task(connection, given.assignment_id)
    if known and task is not None and task.state != "done":
        raise RuntimeError("planted")
    return known


def nobody_is_refused(_: Connection, __: str) -> None:
    """Whoever is paused goes on."""


def nothing_is_freed(_: Connection, __: Sequence[str]) -> None:
    """Who has a pair open when it leaves its round keeps it."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name", "fault", "says"),
    [
        (submissions, "_write", answered_again_in_another_browser, "planted"),
        (submissions, "_written_before", undone_and_sent_again, "planted"),
        (submissions, "refuse_if_paused", nobody_is_refused, "refused True"),
        (rounds, "_free_leases", nothing_is_freed, "which no round contains"),
    ],
)
def test_a_planted_fault_that_needs_several_steps_is_found(
    module: Any, name: str, fault: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, fault)
    found = next(filter(None, (run_seed(number, 100) for number in range(12, 15))), "")
    assert says in found


def test_nothing_is_found_in_the_page_as_it_is() -> None:
    assert run_seed(11, 3) is None
