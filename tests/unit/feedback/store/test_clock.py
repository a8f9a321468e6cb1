"""Clocks that are set back or forth: no negative times, and leases that end when they should."""

import time
from typing import Any

import pytest

from feedback.store.assignments import ServeParams
from feedback.store.database import Database
from feedback.store.submissions import RefusedError
from tests.unit.feedback.conftest import Desk

HOUR_NS = 3600 * 10**9
MINUTE = ServeParams(lease_ms=60_000, gold_rate=0, repeat_rate=0)


class Clocks:
    """The machine's two clocks, to be set by hand."""

    def __init__(self) -> None:
        self.wall, self.since_start = 1_700_000_000 * 10**9, 5 * HOUR_NS

    def pass_by(self, seconds: float) -> None:
        self.wall += int(seconds * 10**9)
        self.since_start += int(seconds * 10**9)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(time, "time_ns", lambda: made.wall)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: made.since_start)
    return made


@pytest.fixture
def desk(clocks: Clocks, tmp_path: Any) -> Any:
    opened = Desk(tmp_path / "feedback.db")
    yield opened
    opened.database.close()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_stores_the_time_that_passed(
    desk: Any, make_pairs: Any, clocks: Clocks, hours: int
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    task = desk.serve("ana")
    clocks.pass_by(20)
    clocks.wall += hours * HOUR_NS
    desk.submit(task, visible_ms=15_000)
    task = desk.serve("ana")
    clocks.pass_by(5)
    # More than has passed since it was served: capped.
    desk.submit(task, visible_ms=90_000)
    assert desk.sql("SELECT visible_ms FROM labels") == [(15_000,), (5_000,)]


def test_a_clock_that_is_set_back_holds_no_pair_longer_than_its_lease(
    desk: Any, make_pairs: Any, clocks: Clocks
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    desk.serve("ana", MINUTE)
    clocks.wall -= HOUR_NS
    clocks.pass_by(59)
    assert desk.serve("ben") is None
    clocks.pass_by(2)
    assert desk.serve("ben") is not None


def test_a_clock_that_is_set_forth_takes_no_pair_away(
    desk: Any, make_pairs: Any, clocks: Clocks
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    task = desk.serve("ana", MINUTE)
    clocks.wall += HOUR_NS
    assert desk.serve("ben") is None
    assert desk.submit(task)


def test_a_restart_after_the_clock_was_set_back_keeps_leases_as_they_are(
    desk: Any, make_pairs: Any, clocks: Clocks
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    late = desk.serve("ana", MINUTE)
    path = desk.sql("PRAGMA database_list")[0][2]
    desk.database.close()
    clocks.wall -= HOUR_NS
    clocks.since_start = 0  # the machine was started again
    desk.database = Database(path)
    clocks.pass_by(10)
    assert desk.serve("ben", MINUTE) is None
    clocks.pass_by(51)
    assert desk.serve("ben", MINUTE) is not None
    with pytest.raises(RefusedError, match="somebody else has taken it"):
        desk.submit(late, visible_ms=1)


def test_an_undo_is_timed_by_the_same_clock(desk: Any, make_pairs: Any, clocks: Clocks) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    desk.answer("ana", params=MINUTE)
    clocks.wall -= HOUR_NS
    task = desk.undo("ana")
    clocks.pass_by(3)
    desk.submit(task, visible_ms=50_000)
    assert desk.sql("SELECT visible_ms FROM labels ORDER BY label_id")[-1] == (3_000,)


def test_a_stored_time_is_that_of_the_calendar(desk: Any, make_pairs: Any, clocks: Clocks) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    task = desk.serve("ana")
    clocks.wall -= HOUR_NS
    desk.submit(task)
    # The clock was set right: labels and the log say what it says.
    assert desk.sql("SELECT created_ms FROM labels") == [(clocks.wall // 10**6,)]
