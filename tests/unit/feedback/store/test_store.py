"""The labelling store: nothing lost, nothing doubled, nobody asked twice, nothing forgotten."""

import collections
import json
import math
import random
import secrets
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.exc

from feedback.formats.exchange import to_trl
from feedback.page import notify
from feedback.page.views import task_view
from feedback.store import accounts, database, rounds, schema, standing
from feedback.store.assignments import ServeParams, next_task
from feedback.store.submissions import RefusedError, Submission, submit
from tests.unit.feedback.conftest import Desk


def test_the_same_pair_is_served_until_it_is_answered(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(5))
    first = desk.serve("ana")
    assert desk.serve("ana") == first
    desk.submit(first)
    assert desk.serve("ana").pair != first.pair


def test_everybody_gets_another_pair(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben", "cleo")
    desk.publish(make_pairs(3))
    assert len({desk.serve(name).pair.pair_id for name in ("ana", "ben", "cleo")}) == 3


def test_a_pair_goes_to_as_many_different_people_as_overlap_asks(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana", "ben", "cleo")
    desk.publish(make_pairs(4), overlap=2)
    while any([desk.answer(name, "a") for name in ("ana", "ben", "cleo")]):
        pass
    rows = desk.sql("SELECT pair_id, annotator_id FROM assignments WHERE state = 'done'")
    counts = collections.Counter(pair_id for pair_id, _ in rows)
    assert set(counts.values()) == {2}
    assert len(set(rows)) == len(rows) == 8
    assert desk.progress().complete


def test_nobody_is_asked_twice_about_a_pair(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(3), overlap=2)
    served = [desk.answer("ana").pair.pair_id for _ in range(3)]
    assert len(set(served)) == 3
    assert desk.serve("ana") is None
    assert desk.progress().missing == 3


def test_a_third_person_is_asked_when_two_disagree(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben", "cleo", "dan")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    assert (desk.progress().missing, desk.progress().complete) == (1, False)
    assert desk.answer("cleo", "a") is not None
    assert desk.answer("dan", "a") is None
    assert (desk.progress().missing, desk.progress().complete) == (0, True)


def test_no_third_vote_is_awaited_when_nobody_is_left_to_give_it(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    assert desk.progress().complete


def test_a_new_colleague_does_not_open_what_was_settled_without_them(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    desk.hire("cleo")
    desk.publish(make_pairs(1), overlap=2)
    assert (desk.progress().complete, desk.progress().missing) == (True, 0)
    assert desk.serve("cleo") is None


def test_a_pause_settles_what_waited_for_that_person(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben", "cleo")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    assert not desk.progress().complete
    with desk.database.writing() as connection:
        accounts.pause(connection, "cleo", "on holiday")
        assert notify.unannounced(connection) == ["r1"]
    assert desk.progress().complete


def test_a_round_that_an_undo_opened_is_announced_again_when_it_is_complete(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    desk.answer("ana"), desk.answer("ana")
    with desk.database.writing() as connection:
        assert notify.unannounced(connection) == ["r1"]
        connection.execute(schema.rounds.update().values(notified_ms=1))
        assert notify.unannounced(connection) == []
    desk.undo("ana")
    desk.answer("ana")
    with desk.database.reading() as connection:
        assert notify.unannounced(connection) == ["r1"]


def test_an_expired_lease_goes_to_somebody_else(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    late = desk.serve("ana", ServeParams(lease_ms=-1, gold_rate=0, repeat_rate=0))
    taken = desk.serve("ben")
    assert taken.pair == late.pair
    with pytest.raises(RefusedError, match="somebody else has taken it"):
        desk.submit(late)
    desk.submit(taken)
    with pytest.raises(RefusedError, match="somebody else has taken it"):
        desk.submit(late)
    assert [row[0] for row in desk.sql("SELECT kind FROM events WHERE kind = 'expire'")] == [
        "expire"
    ]


def test_a_late_answer_is_taken_when_nobody_else_has_the_pair(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    late = desk.serve("ana", ServeParams(lease_ms=-1, gold_rate=0, repeat_rate=0))
    assert desk.submit(late)
    assert desk.serve("ben") is None


def test_the_same_submission_twice_is_written_once(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    task = desk.serve("ana")
    assert desk.submit(task, "left", key="k1") is True
    assert desk.submit(task, "left", key="k1") is False
    assert desk.sql("SELECT count(*) FROM labels") == [(1,)]


def test_a_submission_key_cannot_carry_another_answer(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    task = desk.serve("ana")
    desk.submit(task, "left", key="k1")
    with pytest.raises(RefusedError, match="used for another answer"):
        desk.submit(task, "right", key="k1")


def test_a_second_answer_to_the_same_pair_is_refused(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2), overlap=2)
    task = desk.serve("ana")
    desk.submit(task)
    with pytest.raises(RefusedError, match="you have already answered this pair"):
        desk.submit(task)


def test_nobody_can_answer_for_somebody_else(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    task = desk.serve("ana")
    with pytest.raises(RefusedError, match="not given to you"):
        desk.submit(task, name="ben")


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


def test_an_undone_answer_is_a_new_revision_and_the_pair_comes_back(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    pairs = make_pairs(3)
    desk.publish(pairs)
    first = desk.answer("ana", "a")
    desk.serve("ana")
    again = desk.undo("ana")
    assert (again.pair, again.swap) == (first.pair, first.swap)
    assert desk.serve("ana").assignment_id == again.assignment_id
    desk.answer("ana", "b")
    query = "SELECT revision, choice FROM labels ORDER BY label_id"
    assert desk.sql(query) == [(1, "a"), (2, "withdrawn"), (3, "b")]
    with desk.database.reading() as connection:
        (judgment,) = standing.judgments_of(connection, pairs)
    assert (judgment.choice, judgment.revision) == ("b", 3)


def test_an_undone_answer_counts_no_longer(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.answer("ana")
    assert desk.progress().complete
    desk.undo("ana")
    assert desk.progress().missing == 1


def test_answers_are_undone_one_after_the_other(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(5))
    served = [desk.answer("ana").pair for _ in range(3)]
    assert [desk.undo("ana").pair for _ in range(3)] == served[::-1]
    assert desk.undo("ana") is None


def test_the_same_undo_twice_takes_back_one_answer(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(3))
    desk.answer("ana")
    desk.answer("ana")
    assert desk.undo("ana", key="undo-1") is not None
    assert desk.undo("ana", key="undo-1") is None
    assert desk.progress().judgments == 1


def test_at_most_ten_answers_are_undone_in_a_row(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(12))
    for _ in range(12):
        desk.answer("ana")
    assert [desk.undo("ana") is None for _ in range(11)] == [False] * 10 + [True]


def test_answering_in_between_does_not_reach_older_answers(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(15))
    first = [desk.answer("ana").assignment_id for _ in range(15)]
    for _ in range(8):
        while desk.undo("ana") is not None:
            pass
        desk.answer("ana")
    undone = desk.sql("SELECT DISTINCT assignment_id FROM labels WHERE choice = 'withdrawn'")
    assert {row[0] for row in undone} <= set(first[5:])


def test_an_undone_third_vote_does_not_open_a_fourth(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben", "cleo", "dan")
    desk.publish(make_pairs(1), overlap=2)
    desk.answer("ana", "a")
    desk.answer("ben", "b")
    desk.answer("cleo", "a")
    desk.undo("ana")
    assert desk.serve("dan") is None
    desk.answer("ana", "b")
    assert desk.sql("SELECT count(*) FROM assignments WHERE state = 'done'") == [(3,)]


def test_publishing_the_same_pairs_again_changes_nothing(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    pairs = make_pairs(5)
    assert desk.publish(pairs).added == 5
    desk.answer("ana")
    again = desk.publish(
        [replace(p, response_a=p.response_b, response_b=p.response_a) for p in pairs]
    )
    assert (again.added, again.kept, again.removed) == (0, 5, 0)
    assert desk.progress().judgments == 1
    assert desk.sql("SELECT count(*) FROM events WHERE kind = 'publish'") == [(1,)]


def test_changed_samples_ask_only_for_the_new_pairs(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(6))
    while desk.answer("ana") is not None:
        pass
    changed = desk.publish(make_pairs(4) + make_pairs(2, start=100))
    assert (changed.added, changed.kept, changed.removed) == (2, 4, 2)
    served = []
    while (task := desk.answer("ana")) is not None:
        served.append(task.pair.prompt)
    assert sorted(served) == ["prompt 100", "prompt 101"]


def test_an_answer_for_a_pair_that_left_its_round_is_refused_with_the_reason(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    task = desk.serve("ana")
    desk.publish(make_pairs(1, start=50))
    with pytest.raises(RefusedError, match="round r1 no longer contains this pair"):
        desk.submit(task)
    assert desk.serve("ana").pair.prompt == "prompt 50"


def test_labels_of_an_earlier_round_count_for_the_same_content(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(3, key="r1"))
    while desk.answer("ana", "a") is not None:
        pass
    now = [
        replace(pair, response_a=pair.response_b, response_b=pair.response_a)
        for pair in make_pairs(3, key="r2")
    ]
    desk.publish(now)
    assert desk.progress("r2").complete
    with desk.database.reading() as connection:
        judgments = standing.judgments_of(connection, now)
    assert [(one.round, one.choice) for one in judgments] == [("r2", "b")] * 3


def test_pairs_come_back_when_their_samples_do(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    desk.answer("ana")
    desk.publish(make_pairs(2, start=10))
    desk.publish(make_pairs(2))
    assert (desk.progress().judgments, desk.progress().missing) == (1, 1)


def test_a_lower_overlap_settles_what_has_enough_answers(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2), overlap=2)
    desk.answer("ana")
    assert desk.progress().missing == 3
    desk.publish(make_pairs(2), overlap=1)
    assert desk.progress().missing == 1


@pytest.mark.parametrize("table", ["labels", "events"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET annotator_id = 'x'"])
def test_labels_and_events_can_only_be_added(
    desk: Any, make_pairs: Any, table: str, statement: str
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.answer("ana")
    with pytest.raises(sqlalchemy.exc.DatabaseError, match="append-only"):
        desk.sql(statement.format(table))


def test_every_serve_label_undo_and_publish_is_in_the_log(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    desk.answer("ana")
    desk.undo("ana")
    kinds = [row[0] for row in desk.sql("SELECT kind FROM events ORDER BY event_id")]
    assert kinds == ["token", "publish", "serve", "label", "undo"]


def test_gold_items_and_repeats_take_no_place_of_a_pair(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(100))
    gold = make_pairs(5, key="gold", start=1000)
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    params = ServeParams(gold_rate=0.05, repeat_rate=0.1, repeat_gap=5)
    purposes: collections.Counter[str] = collections.Counter()
    while (task := desk.answer("ana", "a", params)) is not None:
        purposes[task.purpose] += 1
    assert purposes["label"] == 100
    assert purposes["gold"] == 5
    # About 0.1 of 116 servings; binomial standard deviation 3.2.
    assert 3 <= purposes["repeat"] <= 22
    assert (desk.progress().judgments, desk.progress().complete) == (100, True)


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


def test_the_time_of_an_answer_is_never_longer_than_since_it_was_served(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.submit(desk.serve("ana"), visible_ms=10**9)
    ((visible,),) = desk.sql("SELECT visible_ms FROM labels")
    assert visible < 60_000


def test_a_paused_person_keeps_no_pair(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana", "ben")
    desk.publish(make_pairs(1))
    desk.serve("ana")
    assert desk.serve("ben") is None
    with desk.database.writing() as connection:
        accounts.pause(connection, "ana", "a word is needed")
    assert desk.serve("ben") is not None


def test_tokens_and_sessions_are_stored_as_hashes(desk: Any) -> None:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
    stored = str([desk.sql(f"SELECT * FROM {table}") for table in schema.metadata.tables])
    assert "ana" in stored
    assert token not in stored
    assert session not in stored


def test_a_new_token_ends_the_old_one_and_its_sessions(desk: Any) -> None:
    with desk.database.writing() as connection:
        old = accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
        assert accounts.by_session(connection, session) is not None
        new = accounts.new_token(connection, "ana", role="lead")
        assert accounts.by_token(connection, old) is None
        assert accounts.by_session(connection, session) is None
        person = accounts.by_token(connection, new)
    assert (person.annotator_id, person.role) == ("ana", "lead")


def test_a_session_ends_by_itself(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk.database.writing() as connection:
        accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
        later = database.now_ms() + accounts.SESSION_MS + 1
        monkeypatch.setattr(accounts, "now_ms", lambda: later)
        assert accounts.by_session(connection, session) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 65,
        "a\nb",
        "a\x00",
        " ",
        "\u200b",
        "\u202e\u2066",
        "\u2800",
        "\u3164",
        "\u0301",
        "\u200d",
        "ana\u202e",
        "ana\u200b",
        " ana",
        "ana\u00a0",
        "ana\u0085",
    ],
)
def test_a_name_that_is_none_is_refused(desk: Any, name: str) -> None:
    with desk.database.writing() as connection, pytest.raises(ValueError, match="annotator is"):
        accounts.new_token(connection, name)


@pytest.mark.parametrize(
    "name", ["ana", "Ana María", "李", "عليرضا", "نیم\u200cفاصله", "👩\u200d🔬"]
)
def test_a_name_of_any_script_is_taken(desk: Any, name: str) -> None:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, name)
        assert accounts.by_token(connection, token).annotator_id == name


def test_eight_people_at_once_lose_and_double_nothing(desk: Any, make_pairs: Any) -> None:
    names = [f"p{n}" for n in range(8)]
    desk.hire(*names)
    desk.publish(make_pairs(40), overlap=2)
    acknowledged: list[str] = []

    def work(name: str) -> None:
        while (task := desk.serve(name)) is not None:
            desk.submit(task, "tie", key=f"{name}-{task.assignment_id}")
            acknowledged.append(task.assignment_id)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = desk.sql("SELECT assignment_id FROM labels")
    assert sorted(acknowledged) == sorted(row[0] for row in rows)
    counts = desk.sql(
        "SELECT count(*), count(DISTINCT annotator_id) FROM assignments "
        "WHERE state = 'done' GROUP BY pair_id"
    )
    assert counts == [(2, 2)] * 40


def test_a_file_is_written_ahead_and_in_full(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "feedback.db")
    assert desk.sql("PRAGMA journal_mode") == [("wal",)]
    assert desk.sql("PRAGMA synchronous") == [(2,)]
    desk.database.close()


def test_the_store_is_for_its_owner_only_also_one_that_was_open_to_all(tmp_path: Path):
    path = tmp_path / "feedback.db"
    path.touch(mode=0o644)
    path.chmod(0o644)
    store = database.Database(path)
    with store.writing() as connection:
        accounts.new_token(connection, "ana")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    store.close()
    assert modes == {name: 0o600 for name in modes}
    assert "feedback.db-wal" in modes


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
