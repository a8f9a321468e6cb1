"""Strengths and times of judgments that are imported."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from feedback.store import importing, standing
from feedback.store.importing import take
from tests.unit.feedback.judged_pairs import a_judgment


def test_an_imported_judgment_of_another_strength_is_another_one(
    desk: Any, make_pairs: Any
) -> None:
    (pair,) = make_pairs(1)
    desk.publish([pair])
    first = a_judgment(pair, choice="a", strength=2)
    with desk.database.writing() as connection:
        assert take(connection, [first], "r1").taken == 1
        assert take(connection, [first], "r1").known == 1
        done = take(connection, [replace(first, strength=4)], "r1")

    assert (done.taken, done.known) == (0, 0)
    assert "has judged this pair differently" in done.refused[0].reason


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_an_imported_time_without_a_zone_is_utc_wherever_this_is(
    desk: Any, make_pairs: Any, far_away: None
) -> None:
    (pair,) = make_pairs(1)
    desk.publish([pair])
    judgment = a_judgment(pair, choice="a", strength=None)
    judgment = replace(judgment, created_at="2026-01-02T03:04:05")
    with desk.database.writing() as connection:
        take(connection, [judgment], "r1")
    with desk.database.reading() as connection:
        (found,) = standing.judgments_of(connection, [pair])

    assert found.created_at == "2026-01-02T03:04:05.000+00:00"


def test_an_import_builds_its_statements_once_and_not_for_each_judgment(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 judgments kept everybody's answers waiting for over half a minute."""
    pairs = make_pairs(6)
    desk.publish(pairs)
    built: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        make = getattr(importing, name)

        def build(*given: Any) -> Any:
            built.append(name)
            return make(*given)

        return build

    for name in ("select", "insert", "update"):
        monkeypatch.setattr(importing, name, counted(name))
    judged = [a_judgment(pair, choice="a", strength=2) for pair in pairs]
    with desk.database.writing() as connection:
        assert take(connection, judged, "r1").taken == 6
        assert take(connection, judged, "r1").known == 6
    assert built == ["insert"], "of the annotator"
