"""A round that is published again keeps its answers and asks only for what is new."""

import json
from dataclasses import replace
from typing import Any

import pytest

from feedback.store import rounds, standing
from feedback.store.submissions import RefusedError


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


def test_a_round_keeps_its_overlap_unless_another_is_asked_for(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2), overlap=2)
    desk.publish(make_pairs(3), overlap=None)
    assert desk.progress().missing == 6
    desk.publish(make_pairs(1, key="r2", start=10), overlap=None)
    assert desk.progress("r2").missing == 1


def test_who_asks_more_people_of_the_same_pairs_is_in_the_log(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.answer("ana")
    with desk.database.writing() as connection:
        rounds.publish(connection, make_pairs(1), overlap=3, by="lea")
    assert desk.progress().missing == 2
    query = "SELECT detail FROM events WHERE kind = 'publish' ORDER BY event_id"
    assert [json.loads(detail) for (detail,) in desk.sql(query)] == [
        {"added": 1, "removed": 0},
        {"added": 0, "removed": 0, "overlap": 3, "by": "lea"},
    ]
