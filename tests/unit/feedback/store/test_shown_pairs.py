"""What is shown of a pair: its sides by chance, and which of its responses were cut."""

import collections
import json
import math
import random
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedback.formats.exchange import to_trl
from feedback.page.views import task_view
from feedback.store import rounds, standing
from feedback.store.assignments import ServeParams, next_task
from feedback.store.submissions import Submission, submit
from tests.unit.feedback.conftest import Desk


def test_sides_are_stored_as_responses(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(40))
    swaps = set()
    while (task := desk.answer("ana", "left")) is not None:
        ((choice,),) = desk.sql(
            f"SELECT choice FROM labels WHERE assignment_id = '{task.assignment_id}'"
        )
        assert choice == ("b" if task.swap else "a")
        swaps.add(task.swap)
    assert swaps == {True, False}


def test_half_of_the_responses_a_stand_on_the_left(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The coin is real elsewhere; here a seeded one, since three standard deviations of a real one
    # are passed every 370th time.
    monkeypatch.setattr(secrets, "randbelow", random.Random(0).randrange)
    desk.hire("ana", "ben", "cleo", "dan")
    desk.publish(make_pairs(40), overlap=4)
    gold = make_pairs(15, key="gold", start=1000)
    params = ServeParams(gold_rate=0.2, repeat_rate=0.1, repeat_gap=5)
    a_left: collections.Counter[str] = collections.Counter()
    served: collections.Counter[str] = collections.Counter()
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
        for name in ("ana", "ben", "cleo", "dan"):
            while (task := next_task(connection, name, params)) is not None:
                view = task_view(task)
                a_left[task.purpose] += view["left_raw"].endswith(" a")
                served[task.purpose] += 1
                given = Submission(
                    assignment_id=task.assignment_id,
                    choice="left",
                    strength=None,
                    reason=None,
                    visible_ms=None,
                    key=task.assignment_id,
                    guideline_hash="g1",
                )
                submit(connection, name, given)
    assert served["label"] == 160
    assert served["gold"] > 20
    assert served["repeat"] > 5
    for purpose, n in served.items():
        assert abs(a_left[purpose] - n / 2) < 3 * math.sqrt(n / 4), purpose


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_judgment_is_the_same_whichever_side_a_response_stands_on(
    tmp_path: Path, make_pairs: Any, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    choices = ("a", "b", "tie", "both_bad", "skip", "b")
    said = []
    for side in (0, 1):
        monkeypatch.setattr(secrets, "randbelow", lambda _, side=side: side)
        desk = Desk(tmp_path / f"{side}.db")
        desk.hire("ana", "ben")
        pairs = make_pairs(12)
        desk.publish(pairs, overlap=overlap)
        for number in range(12):
            for name in ("ana", "ben")[:overlap]:
                assert desk.answer(name, choices[number % 6]).swap == bool(side)
        with desk.database.reading() as connection:
            judgments = standing.judgments_of(connection, pairs)
        desk.database.close()
        assert {one.shown_order for one in judgments} == {"BA" if side else "AB"}
        rows = to_trl(judgments, {pair.pair_id: pair for pair in pairs})
        said.append(([(one.pair_id, one.annotator_id, one.choice) for one in judgments], rows))
    assert len(said[0][0]) == 12 * overlap
    assert said[0] == said[1]


def test_a_repeat_shows_the_pair_with_sides_exchanged(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(60))
    params = ServeParams(gold_rate=0, repeat_rate=0.3, repeat_gap=5)
    shown: dict[str, tuple[int, bool]] = {}
    repeats = 0
    for number in range(60):
        task = desk.answer("ana", "a", params)
        if task.purpose == "repeat":
            earlier, swap = shown[task.pair.pair_id]
            assert task.swap != swap
            assert number - earlier > 5
            repeats += 1
        else:
            shown[task.pair.pair_id] = (number, task.swap)
    assert repeats > 5


def cut(pairs: Any) -> list[Any]:
    """The pairs, of which every second response b was cut."""
    return [replace(pair, finished_b=number % 2 == 0) for number, pair in enumerate(pairs)]


def test_a_response_that_was_cut_is_one_when_it_is_served_and_exported(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    pairs = {pair.pair_id: pair for pair in cut(make_pairs(4))}
    desk.publish(list(pairs.values()))
    for _ in pairs:
        served = desk.answer("ana", "a").pair
        assert served == pairs[served.pair_id]
    with desk.database.reading() as connection:
        stored = standing.pairs_of(connection, list(pairs), "r1")
        judgments = standing.judgments_of(connection, stored)
    assert stored == list(pairs.values())
    for row in to_trl(judgments, pairs):
        pair = pairs[row["pair_id"]]
        assert (row["chosen_finished"], row["rejected_finished"]) == (True, pair.finished_b)


def test_a_store_from_before_there_were_flags_has_finished_responses(
    desk: Any, store: str, make_pairs: Any
) -> None:
    """The content of such a store is [prompt, response_a, response_b]."""
    (old, new) = cut(make_pairs(2))
    desk.publish([old])
    content = json.dumps([old.prompt, old.response_a, old.response_b])
    desk.sql(f"UPDATE pairs SET content = '{content}'")
    reopened = Desk(store)
    reopened.publish([old, new])
    with reopened.database.reading() as connection:
        found = standing.pairs_of(connection, [old.pair_id, new.pair_id], "r1")
    reopened.database.close()
    assert found == [old, new]
    assert (found[0].finished_b, found[1].finished_b) == (True, False)


def test_the_page_says_which_side_was_cut(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish([replace(pair, finished_a=False) for pair in make_pairs(12)])
    sides = set()
    for _ in range(12):
        task = desk.answer("ana")
        view = task_view(task)
        cut = "left" if view["left_cut"] else "right"
        assert view["left_cut"] != view["right_cut"]
        assert view[f"{cut}_raw"] == task.pair.response_a
        sides.add(cut)
    assert sides == {"left", "right"}


@pytest.mark.parametrize("turned", [False, True])
def test_a_pair_is_shown_as_its_newest_publication_says_whether_it_was_cut(
    desk: Any, make_pairs: Any, turned: bool
) -> None:
    """Otherwise whoever published it first decides for every later round."""
    desk.hire("ana")
    (pair,) = make_pairs(1)
    desk.publish([replace(pair, finished_a=False)])
    again = replace(pair, round="r2", finished_b=False)
    if turned:
        again = replace(
            again,
            response_a=pair.response_b,
            response_b=pair.response_a,
            finished_a=False,
            finished_b=True,
        )
    desk.publish([again])
    task = desk.serve("ana")
    # The order stays, which judgments rely on.
    assert (task.pair.response_a, task.pair.response_b) == (pair.response_a, pair.response_b)
    assert (task.pair.finished_a, task.pair.finished_b) == (True, False)
