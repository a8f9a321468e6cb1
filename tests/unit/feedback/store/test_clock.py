"""Clocks that are set back or forth: no negative times, and leases that end when they should."""

import time
from typing import Any

import pytest

from feedback.store import accounts
from feedback.store.accounts import ExpiredTokenError
from feedback.store.assignments import ServeParams
from feedback.store.database import Database
from feedback.store.importing import take
from feedback.store.submissions import RefusedError
from preferences.records import Judgment
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


def test_a_token_lasts_as_long_as_was_said_and_so_does_its_session(
    desk: Any, clocks: Clocks
) -> None:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, "ana", days=2)
        session = accounts.open_session(connection, "ana")
        for_ever = accounts.new_token(connection, "ben")
    clocks.pass_by(2 * 24 * 3600 - 1)
    with desk.database.reading() as connection:
        assert accounts.by_token(connection, token) is not None
        assert accounts.by_session(connection, session) is not None
    clocks.pass_by(2)
    with desk.database.reading() as connection:
        # 1,700,000,000 s after 1970 was 2023-11-14 22:13:20 UTC.
        with pytest.raises(ExpiredTokenError, match="2023-11-16"):
            accounts.by_token(connection, token)
        assert accounts.by_session(connection, session) is None
        assert accounts.by_token(connection, for_ever) is not None


@pytest.mark.parametrize("days", [0, -1, 3651, float("nan"), float("inf")])
def test_a_token_of_no_days_is_none(desk: Any, days: float) -> None:
    with (
        pytest.raises(ValueError, match="expected more than 0 and at most 3650"),
        desk.database.writing() as connection,
    ):
        accounts.new_token(connection, "ana", days=days)


def test_an_imported_time_of_the_future_ends_no_lease(
    desk: Any, make_pairs: Any, clocks: Clocks
) -> None:
    """Judgments of a machine whose clock is wrong come in while somebody labels."""
    desk.hire("ana", "ben")
    first, second = make_pairs(2)
    desk.publish([first, second])
    task = desk.serve("ana", MINUTE)
    other = second if task.pair.pair_id == first.pair_id else first
    content = {"annotator_id": "zoe", "kind": "import", "annotator_version": "x", "choice": "a"}
    judgment = Judgment.of(other, created_at="2999-01-01T00:00:00+00:00", **content)
    with desk.database.writing() as connection:
        assert take(connection, [judgment], "r1").taken == 1
    path = desk.sql("PRAGMA database_list")[0][2]
    desk.database.close()
    desk.database = Database(path)
    clocks.pass_by(50)
    assert desk.serve("ben", MINUTE) is None
    assert desk.submit(task)
