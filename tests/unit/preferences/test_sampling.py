"""Rows that would give too many pairs give a sample of them."""

from itertools import combinations, product

import pytest

from preferences.__main__ import main
from preferences.formats.reading import open_source
from preferences.formats.sampling import pairs_across, pairs_within
from preferences.opening import Limits
from preferences.reader import MalformedDataError
from tests.file_cases import VOTES, line


@pytest.mark.parametrize("most", [0, 1, 5, 44, 45, 46])
def test_a_sample_is_of_different_pairs_of_the_items(most):
    pairs, left = pairs_within(range(10), most, "key")
    assert len(pairs) == len(set(pairs)) == min(most, 45)
    assert set(pairs) <= set(combinations(range(10), 2))
    assert left == 45 - len(pairs)
    across, more = pairs_across("abcde", range(9), most, "key")
    assert len(across) == len(set(across)) == min(most, 45)
    assert set(across) <= set(product("abcde", range(9)))
    assert more == 45 - len(across)


def test_every_pair_can_be_drawn_and_the_key_alone_decides():
    drawn = {pair for key in range(200) for pair in pairs_within(range(6), 2, str(key))[0]}
    assert drawn == set(combinations(range(6), 2))
    assert pairs_within(range(99), 7, "k") == pairs_within(range(99), 7, "k")
    assert pairs_within(range(99), 7, "k") != pairs_within(range(99), 7, "l")


def test_three_thousand_ranked_answers_give_a_thousand_pairs(tmp_path, capsys):
    answers = [f"answer {n}" for n in range(3000)]
    row = {"prompt": "p", "responses": answers, "ranks": list(range(3000))}
    (tmp_path / "x.jsonl").write_bytes(line(row))
    source = open_source(tmp_path / "x.jsonl")
    pairs = [item.preference for item in source]
    assert (len(pairs), source.left) == (1000, 3000 * 2999 // 2 - 1000)
    assert all(answers.index(pair.chosen) < answers.index(pair.rejected) for pair in pairs)
    assert len({pair.pair_id for pair in pairs}) == 1000
    assert (
        main(["convert", str(tmp_path / "x.jsonl"), str(tmp_path / "y.jsonl"), "--to", "trl"]) == 0
    )
    assert "pairs of prompts with very many left out: 4,497,500" in capsys.readouterr().out


def test_two_thousand_good_and_bad_completions_give_a_thousand_pairs(tmp_path):
    rows = [
        line({"prompt": "p", "completion": f"{label} {n}", "label": label})
        for n in range(2000)
        for label in (True, False)
    ]
    (tmp_path / "x.jsonl").write_bytes(b"".join(rows))
    source = open_source(tmp_path / "x.jsonl")
    pairs = [item.preference for item in source]
    assert (len(pairs), source.left, source.alone) == (1000, 3_999_000, 0)
    assert all(
        pair.chosen.startswith("True") and pair.rejected.startswith("False") for pair in pairs
    )


def test_votes_are_counted_up_to_a_limit_and_refused_beyond(tmp_path):
    row = {**VOTES, "votes": ["a"] * 3, "workers": ["x", "y", "z"]}
    (tmp_path / "x.jsonl").write_bytes(line(row))
    assert len(list(open_source(tmp_path / "x.jsonl", limits=Limits(votes_of_pair=3)))) == 1
    with pytest.raises(
        MalformedDataError, match=":1: found 3 votes on one pair, expected at most 2"
    ):
        list(open_source(tmp_path / "x.jsonl", limits=Limits(votes_of_pair=2)))
