"""Strengths and times of judgments that are imported."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from feedback.store import standing
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


def test_an_import_asks_the_store_as_often_for_many_judgments_as_for_few(
    desk: Any, make_pairs: Any
) -> None:
    """50,000 judgments kept everybody's answers waiting for over half a minute."""
    pairs = make_pairs(9)
    desk.publish(pairs)
    judged = [a_judgment(pair, choice="a", strength=2) for pair in pairs]
    counts = []
    for some in (judged[:2], judged[2:]):
        asked: list[str] = []

        def ask(_: Any, __: Any, statement: str, *___: Any, to: list[str] = asked) -> None:
            if "round_pairs SET needed" not in statement:  # Of a pair that is settled.
                to.append(statement)

        with desk.database.writing() as connection:
            event.listen(connection, "before_cursor_execute", ask)
            assert take(connection, some, "r1").taken == len(some)
            assert take(connection, some, "r1").known == len(some)
        counts.append(len(asked))
    assert counts[1] == counts[0] - 1, "the annotator was new"


def test_what_a_file_says_of_a_pair_in_two_rounds_is_taken_once(desk: Any, make_pairs: Any) -> None:
    (pair,) = make_pairs(1)
    desk.publish([pair])
    judgment = a_judgment(pair, choice="a", strength=2)
    before = replace(judgment, round="r0")
    with desk.database.writing() as connection:
        done = take(connection, [judgment, before], "r1")
    assert (done.taken, done.known, done.refused) == (1, 1, [])

    (other,) = make_pairs(1, start=7)
    desk.publish([pair, other])
    first = a_judgment(other, choice="a", strength=2)
    second = replace(first, round="r0", choice="b")
    with desk.database.writing() as connection:
        done = take(connection, [first, second], "r1")
    assert (done.taken, done.known) == (1, 0)
    assert "has judged this pair differently" in done.refused[0].reason


def test_an_import_closes_what_lies_on_its_annotators_screen(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1), overlap=2)
    shown = desk.serve("ana").pair
    desk.answer("ben", "a")
    desk.undo("ben")
    judged = [
        a_judgment(shown, choice="b", strength=1, annotator_id=name) for name in ("ana", "ben")
    ]
    with desk.database.writing() as connection:
        assert take(connection, judged, "r1").taken == 2
    rows = desk.sql("SELECT annotator_id, state, revision, swap, round FROM assignments")
    assert sorted(rows) == [("ana", "done", 1, 0, "r1"), ("ben", "done", 3, 0, "r1")]
    with desk.database.reading() as connection:
        found = standing.judgments_of(connection, [shown])
    assert [(one.choice, one.revision) for one in found] == [("b", 1), ("b", 3)]
