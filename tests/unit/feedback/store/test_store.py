"""The labelling store: nothing lost, nothing doubled, nobody asked twice, nothing forgotten."""

import collections
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.exc

from feedback.page import notify
from feedback.store import accounts, database, rounds, schema
from feedback.store.assignments import ServeParams
from feedback.store.importing import take
from feedback.store.submissions import RefusedError
from preferences.records import Judgment
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


def test_an_answer_to_a_pair_that_an_import_has_settled_makes_no_second_vote(
    desk: Any, make_pairs: Any
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    task = desk.serve("ana")
    judged = Judgment.of(
        task.pair, annotator_id="zoe", kind="import", annotator_version="x", choice="a",
        created_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    with desk.database.writing() as connection:
        assert take(connection, [judged], "r1").taken == 1
    with pytest.raises(RefusedError, match="judged meanwhile and needs no further answer"):
        desk.submit(task, "right")
    assert desk.sql("SELECT count(*) FROM labels") == [(1,)]
    assert desk.serve("ana").pair != task.pair


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


@pytest.mark.parametrize(
    ("rates", "purpose"),
    [
        ({"gold_rate": 1.0, "repeat_rate": 0.0}, "gold"),
        ({"gold_rate": 0.0, "repeat_rate": 1.0}, "repeat"),
    ],
)
def test_a_check_whose_lease_expired_is_served_again(
    desk: Any, make_pairs: Any, rates: dict[str, float], purpose: str
) -> None:
    """Whoever does not know the right answer could otherwise wait until it is gone."""
    desk.hire("ana")
    desk.publish(make_pairs(4))
    gold = make_pairs(1, key="gold", start=1000)
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {gold[0].pair_id: "a"})
    for _ in range(2):
        desk.answer("ana", "a", ServeParams(gold_rate=0, repeat_rate=0))
    late = desk.serve("ana", ServeParams(lease_ms=-1, repeat_gap=1, **rates))
    assert late.purpose == purpose
    again = desk.serve("ana", ServeParams(repeat_gap=1, **rates))
    assert (again.assignment_id, again.swap) == (late.assignment_id, late.swap)
    desk.submit(again)
    assert desk.serve("ana", ServeParams(repeat_gap=1, **rates)).pair != late.pair


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
