"""What the checks of quality read from the store: sides, lengths, and known answers."""

import random
import secrets
from typing import Any

import pytest

from feedback.quality.answers import gold_shares, load_answers
from feedback.store import rounds
from feedback.store.assignments import ServeParams


def test_an_answer_is_read_with_its_side_and_the_length_of_all_that_is_to_be_read(
    desk: Any, make_pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbelow", random.Random(0).randrange)
    desk.hire("ana")
    desk.publish(make_pairs(9))
    given = ("left", "right", "tie") * 3
    swapped = {desk.answer("ana", choice).swap for choice in given}
    assert swapped == {False, True}
    with desk.database.reading() as connection:
        found = load_answers(connection)
    assert [one.left for one in found] == [True, False, None] * 3
    # "prompt 0", "answer 0 a" and "answer 0 b".
    assert {one.characters for one in found} == {8 + 10 + 10}


def test_a_known_answer_that_is_skipped_counts_neither_way(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    gold = make_pairs(8, key="gold", start=500)
    desk.publish(make_pairs(8))
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    for choice in ("skip", "a") * 6:
        desk.answer("ana", choice, ServeParams(gold_rate=0.9, repeat_rate=0))
    with desk.database.reading() as connection:
        found = [one for one in load_answers(connection) if one.purpose == "gold"]
        shares = gold_shares(connection)
    assert {one.choice for one in found} == {"skip", "a"}
    said = sum(one.choice == "a" for one in found)
    assert (shares["ana"].hits, shares["ana"].n) == (said, said)
