"""How many answers a pair still needs."""

import time
from typing import Any

import pytest
from sqlalchemy import update

from feedback.page.watch import Watch
from feedback.quality.annotators import QualityParams
from feedback.store import accounts, database, schema
from feedback.store.importing import take
from feedback.store.votes import votes_needed
from preferences.records import Judgment, text_hash


@pytest.mark.parametrize(
    ("choices", "overlap", "people", "needed"),
    [
        ([], 1, 1, 1),
        (["a"], 1, 9, 0),
        ([], 2, 5, 2),
        (["a"], 2, 5, 1),
        (["a", "a"], 2, 5, 0),
        (["a", "b"], 2, 5, 1),
        (["a", "tie"], 2, 5, 1),
        (["a", "skip"], 2, 5, 1),
        (["skip", "skip"], 2, 5, 0),
        (["a", "b", "a"], 2, 5, 0),
        (["a", "b", "tie"], 2, 5, 0),
        # Nobody is left to give the third vote.
        (["a", "b"], 2, 2, 0),
        (["a", "a", "b"], 3, 9, 1),
        (["a", "a", "b", "b"], 3, 9, 0),
    ],
)
def test_a_third_vote_is_wanted_on_disagreement_alone(
    choices: list[str], overlap: int, people: int, needed: int
) -> None:
    assert votes_needed(choices, overlap=overlap, people=people) == needed


def disagree(desk: Any, pairs: Any, *names: str) -> None:
    """Two people answer all pairs, each another way."""
    for name, choice in zip(names, ("a", "b"), strict=True):
        for _ in pairs:
            assert desk.answer(name, choice) is not None


def pause(desk: Any, name: str) -> None:
    with desk.database.writing() as connection:
        accounts.pause(connection, name, "on holiday")


def expire(desk: Any, name: str, at: int = 1) -> None:
    mine = schema.annotators.c.annotator_id == name
    with desk.database.writing() as connection:
        connection.execute(update(schema.annotators).where(mine).values(token_expires_ms=at))


def test_a_pause_of_who_has_answered_cancels_no_third_vote(desk: Any, make_pairs: Any) -> None:
    pairs = make_pairs(3)
    desk.hire("ana", "ben", "cleo")
    desk.publish(pairs, overlap=2)
    disagree(desk, pairs, "ana", "ben")
    assert desk.progress().missing == 3
    pause(desk, "ana")
    assert (desk.progress().settled, desk.progress().missing) == (0, 3)
    assert desk.answer("cleo") is not None
    pause(desk, "cleo")
    assert (desk.progress().settled, desk.progress().missing) == (3, 0)


def test_a_lead_who_has_answered_leaves_the_third_vote_to_somebody_else(
    desk: Any, make_pairs: Any
) -> None:
    pairs = make_pairs(1)
    with desk.database.writing() as connection:
        accounts.new_token(connection, "lea", role="lead")
    desk.hire("ana", "ben")
    desk.publish(pairs, overlap=2)
    disagree(desk, pairs, "lea", "ana")
    assert desk.progress().missing == 1
    assert desk.answer("ben") is not None
    assert desk.progress().complete


def test_people_settle_what_imported_annotators_disagree_on(desk: Any, make_pairs: Any) -> None:
    pairs = make_pairs(1)
    desk.hire("ana", "ben")
    desk.publish(pairs, overlap=2)
    said = {"kind": "import", "annotator_version": "v", "answer_a": text_hash(pairs[0].response_a)}
    imported = [
        Judgment.of(pairs[0], annotator_id=name, choice=choice, **said)
        for name, choice in (("one", "a"), ("two", "b"))
    ]
    with desk.database.writing() as connection:
        assert take(connection, imported, "r1").taken == 2
    assert desk.progress().missing == 1
    assert desk.answer("ben") is not None


def test_no_third_vote_is_awaited_from_somebody_whose_token_has_expired(
    desk: Any, make_pairs: Any
) -> None:
    pairs = make_pairs(2)
    desk.hire("ana", "ben", "cleo")
    desk.publish(pairs, overlap=2)
    expire(desk, "cleo")
    disagree(desk, pairs, "ana", "ben")
    assert (desk.progress().complete, desk.progress().missing) == (True, 0)


@pytest.mark.parametrize("by", ["the watch", "publishing", "a token of another role"])
def test_a_third_vote_is_no_longer_awaited_once_the_token_has_expired(
    desk: Any, make_pairs: Any, by: str
) -> None:
    pairs = make_pairs(2)
    desk.hire("ana", "ben", "cleo")
    desk.publish(pairs, overlap=2)
    disagree(desk, pairs, "ana", "ben")
    watch = Watch(desk.database, QualityParams(), prefect=lambda: None, page_url="")
    watch.look()
    assert desk.progress().missing == 2
    if by == "a token of another role":
        with desk.database.writing() as connection:
            accounts.new_token(connection, "cleo", role="lead")
    elif by == "publishing":
        expire(desk, "cleo")
        desk.publish(pairs, overlap=2)
    else:
        expire(desk, "cleo", at=database.now_ms() + 50)
        time.sleep(0.1)
        watch.look()
    assert (desk.progress().complete, desk.progress().missing) == (True, 0)
