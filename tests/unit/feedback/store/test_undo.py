"""An answer that is undone is a new revision, counts no longer, and comes back to its person."""

from typing import Any

import pytest

from feedback.store import rounds, standing
from feedback.store.submissions import RefusedError


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
    undone = desk.undo("ana", key="undo-1")
    # The first reply may have been lost: the second one says as well what was undone.
    assert desk.undo("ana", key="undo-1").assignment_id == undone.assignment_id
    assert desk.progress().judgments == 1


def test_the_key_of_an_answer_undoes_nothing(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(1))
    desk.answer("ana")
    ((key,),) = desk.sql("SELECT submission_key FROM labels")
    with pytest.raises(RefusedError, match="key was used for an answer"):
        desk.undo("ana", key=key)
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


def test_undo_steps_over_a_pair_that_has_left_its_round(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    pairs = make_pairs(4)
    desk.publish(pairs)
    first, second = desk.answer("ana"), desk.answer("ana")
    desk.publish([pair for pair in pairs if pair.pair_id != second.pair.pair_id])
    assert desk.undo("ana").pair == first.pair
    desk.answer("ana")
    desk.publish(
        [pair for pair in pairs if pair.pair_id not in (first.pair.pair_id, second.pair.pair_id)]
    )
    assert desk.undo("ana") is None


def test_an_answer_that_is_undone_while_a_round_is_read_is_there_to_the_end(
    desk: Any, make_pairs: Any
) -> None:
    """A round that was complete would otherwise be taken without one of its answers."""
    desk.hire("ana")
    desk.publish(make_pairs(2))
    desk.answer("ana", "a")
    desk.answer("ana", "b")
    with desk.database.reading() as connection:
        (before,) = rounds.progress(connection)
        desk.undo("ana")
        (after,) = rounds.progress(connection)
    assert before == after
    assert (after.complete, after.judgments) == (True, 2)
    assert (desk.progress().complete, desk.progress().judgments) == (False, 1)
