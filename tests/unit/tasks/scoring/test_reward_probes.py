"""Each probe on scorers whose scores are known by hand: one that knows everything, and spoilt ones.

A scorer here reads the text of a row and gives it a number by a rule.
"""

import csv
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from preferences.records import Preference, Prompt
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from tasks.running.progress import Progress
from tasks.scoring.reward_probes import (
    DEMANDS,
    LEAST,
    PASSES,
    Probe,
    Scorer,
    failures,
    probe,
    undecided,
    write_probes,
)
from tests import tiny
from tests.tiny import COMPUTE, tokenizer

Rule = Callable[[str, str], float]
"""Prompt and response -> score."""

PAIRS = 120
GOOD = "I am sorry, Kim. A new lamp is on its way"
LONG, SHORT = "It left on Monday and comes tomorrow, and my parcel left, and it left", "no"
NUMBERS = {chr(0x41 + n % 26) + chr(0x61 + n // 26) for n in range(PAIRS)}


class Reading(Encoder):
    """Keeps the prompt and response behind each row of ids."""

    def __init__(self) -> None:
        super().__init__(tokenizer())
        self.read: dict[tuple[int, ...], tuple[str, str]] = {}

    def encode(self, prompt: Any, response: str, *, finished: bool) -> list[int]:
        ids = super().encode(prompt, response, finished=finished)
        self.read[tuple(ids)] = (prompt, response)
        return ids


class Ruled(RewardModel):
    """Scores what is behind a row by a rule."""

    def __init__(self, rule: Rule, encoder: Reading):
        super().__init__(tiny.reward_model(vocabulary=len(tokenizer())).classifier)
        self.rule, self.encoder = rule, encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = [tuple(row[kept].tolist()) for row, kept in zip(ids, mask, strict=True)]
        return torch.tensor([self.rule(*self.encoder.read[row]) for row in rows])


def rows(count: int = PAIRS) -> list[Preference]:
    """Each chosen response names its prompt; every other rejected one is the longer, or shorter."""
    names = sorted(NUMBERS)[:count]
    return [
        Preference(
            pair_id=name,
            prompt_id=name,
            prompt=f"{name}?",
            chosen=f"{GOOD} {name}",
            rejected=LONG if place % 2 else SHORT,
            split="heldout",
        )
        for place, name in enumerate(names)
    ]


def scorer(rule: Rule, encoder: Encoder, *, max_tokens: int = 1000) -> Scorer:
    progress = Progress("probes", PASSES, "passes")
    return Scorer(Ruled(rule, encoder), encoder, COMPUTE, max_tokens=max_tokens, progress=progress)


def asked(
    rule: Rule, pairs: list[Preference] | None = None, others: Sequence[Preference] = ()
) -> dict[str, Probe]:
    encoder = Reading()
    found = probe(
        scorer(rule, encoder),
        rows() if pairs is None else pairs,
        others=others,
        draws=random.Random(0),
    )
    assert [one.name for one in found] == list(DEMANDS)
    return {one.name: one for one in found}


def known(prompt: str, response: str) -> float:
    """1 for exactly the good response to the prompt, 0 for everything else."""
    return float(response == f"{GOOD} {prompt[:-1]}")


def red(found: dict[str, Probe]) -> set[str]:
    return {name for name, one in found.items() if not one.passed}


def test_a_model_that_knows_the_good_response_passes_every_probe():
    found = asked(known)
    assert red(found) == set()
    assert failures(list(found.values())) == []
    assert {name: one.won.mean for name, one in found.items() if one.won} == {
        name: 1.0 for name in DEMANDS if name != "same_length"
    }
    # It is right against the rule of length where the rejected response is the longer one.
    assert (found["labels"].pairs, found["length"].pairs) == (PAIRS, PAIRS // 2)
    assert found["same_length"].pairs == 0


LIKES: dict[str, Rule] = {
    "empty": lambda _, response: 2.0 if not response else 0.0,
    "cut": lambda _, response: 2.0 if response == "I am sorry, Kim. A new" else 0.0,
    "repeated": lambda _, response: 2.0 if response.count(GOOD) == 2 else 0.0,
    "shuffled": lambda _, response: (
        2.0 if len(response) == len(GOOD) + 3 and not response.startswith(GOOD) else 0.0
    ),
}


@pytest.mark.parametrize("name", LIKES)
def test_a_model_that_likes_what_was_spoilt_fails_that_probe_alone(name: str):
    found = asked(lambda prompt, response: known(prompt, response) + LIKES[name](prompt, response))
    assert red(found) == {name}
    (said,) = failures(list(found.values()))
    assert said.startswith(f"{name}: 0.000 [0.000, ")


def test_a_turned_model_fails_the_labels_and_all_that_it_turns_round():
    assert red(asked(lambda *text: -known(*text))) == {
        "labels", "newest", "length", "empty", "shuffled", "cut", "repeated",
    }  # fmt: skip


def test_labels_that_are_shown_to_be_no_better_than_a_coin_fail():
    """54 of 100 right: Wilson's interval at 95 % is 0.443 to 0.634, by hand."""
    right = {row.prompt[:-1] for row in rows(100)[:54]}
    found = asked(
        lambda prompt, response: known(prompt, response) * (1 if prompt[:-1] in right else -1),
        rows(100),
    )
    assert not found["labels"].passed
    assert "labels: 0.540 [0.443, 0.634] of 100 pairs" in failures(list(found.values()))[0]


def test_the_rule_that_the_longer_response_wins_is_found_though_all_labels_follow_it():
    by_length = [row for row in rows() if row.rejected == SHORT]
    longer = [dataclasses.replace(row, rejected=f"{LONG} {row.prompt}") for row in rows()[1::2]]
    turned = [dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen) for row in longer]
    found = asked(lambda _, response: float(len(response)), by_length + turned)
    assert found["labels"].won is not None
    assert found["labels"].won.mean == 1.0
    assert red(found) == {"length", "repeated"}
    assert found["length"].won is None


def test_a_model_that_hardly_disagrees_with_the_rule_of_length_fails_however_right_it_is():
    """Right on all pairs but those in which the longer response is the rejected one."""
    found = asked(
        lambda prompt, response: known(prompt, response) + 2 * (response == LONG),
        rows() + [dataclasses.replace(row, rejected=SHORT) for row in rows()],
    )
    assert found["labels"].passed
    assert (found["length"].pairs, red(found)) == (0, {"length"})
    assert failures(list(found.values())) == [
        "length: no pairs, expected at least 12, expected an interval that reaches 0.5"
    ]


def test_a_model_that_disagrees_with_the_rule_of_length_and_is_wrong_fails():
    """On the pairs with a shorter rejected response only: the rule is right on all of them."""
    shorter = [dataclasses.replace(row, rejected=SHORT) for row in rows()]
    doubted = {row.prompt for row in shorter[:30]}
    found = asked(
        lambda prompt, response: known(prompt, response) * (-1 if prompt in doubted else 1),
        shorter,
    )
    assert found["labels"].passed
    assert (found["length"].pairs, found["length"].passed) == (30, False)


def test_pairs_of_nearly_the_same_length_are_asked_about_apart():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()]
    found = asked(lambda *text: -known(*text), as_long)
    assert (found["same_length"].pairs, found["same_length"].passed) == (PAIRS, False)
    assert asked(known, as_long)["same_length"].passed


def test_of_two_good_responses_either_may_be_chosen_in_the_newest_round():
    """Labels that are coin flips block nothing, where those of earlier rounds were understood."""
    flipped = [
        row if place % 4 < 2 else dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen)
        for place, row in enumerate(rows())
    ]
    earlier = [dataclasses.replace(row, pair_id=f"earlier {row.pair_id}") for row in rows()]

    alone, both = asked(known, flipped), asked(known, flipped, earlier)

    assert (alone["newest"].won, alone["newest"].passed) == (alone["labels"].won, True)
    assert not alone["labels"].passed
    assert both["labels"].pairs == 2 * PAIRS
    assert both["labels"].won is not None
    assert both["labels"].won.mean == 0.75
    assert both["labels"].passed


def test_labels_of_the_newest_round_that_are_turned_round_fail_whatever_the_earlier_say():
    turned = [dataclasses.replace(row, chosen=row.rejected, rejected=row.chosen) for row in rows()]
    earlier = [
        dataclasses.replace(row, pair_id=f"{row.pair_id} {time}")
        for row in rows()
        for time in range(3)
    ]
    found = asked(known, turned, earlier)
    assert found["labels"].passed
    assert "newest" in red(found)


def test_fewer_pairs_than_an_interval_needs_decide_nothing():
    few = asked(lambda *text: -known(*text), rows(LEAST - 1))
    assert red(few) == set()
    assert few["labels"].won is not None
    assert few["labels"].won.mean == 0.0
    assert "labels" in red(asked(lambda *text: -known(*text), rows(LEAST)))


def test_probes_that_decide_nothing_say_how_many_pairs_were_found_and_are_needed():
    few = list(asked(known, rows(LEAST - 1), []).values())
    words = undecided(few)
    assert words is not None
    assert "at least 100 held-out pairs" in words
    assert "found 99" in words
    assert "prepare.heldout_preferences" in words
    assert undecided(list(asked(known, rows(LEAST)).values())) is None
    # Pairs of earlier rounds count for `labels`, which then decides.
    earlier = [dataclasses.replace(row, pair_id=f"{row.pair_id} again") for row in rows(1)]
    assert undecided(list(asked(known, rows(LEAST - 1), earlier).values())) is None


def test_ties_and_what_is_too_long_are_left_out():
    tied = [dataclasses.replace(row, label=0.5) for row in rows()]
    assert all(one.pairs == 0 for one in asked(known, tied).values())
    whole = Encoder(tokenizer()).encode(rows()[0].prompt, rows()[0].chosen, finished=True)
    encoder = Reading()
    short = scorer(known, encoder, max_tokens=len(whole) + 6)
    found = probe(short, rows(), draws=random.Random(0))
    pairs = {one.name: one.pairs for one in found}
    assert pairs["repeated"] == 0
    assert pairs["empty"] == PAIRS


def test_the_file_has_one_line_for_each_probe(tmp_path):
    found = asked(known)
    write_probes(tmp_path / "probes.csv", list(found.values()))
    with (tmp_path / "probes.csv").open(newline="") as file:
        lines = {line["probe"]: line for line in csv.DictReader(file)}
    assert list(lines) == list(DEMANDS)
    assert (lines["labels"]["pairs"], lines["labels"]["won"]) == ("120", "1.000000")
    assert (lines["labels"]["demand"], lines["labels"]["passed"]) == ("above", "true")
    assert lines["same_length"]["won"] == ""


def test_where_no_side_is_longer_the_rule_of_length_asks_nothing():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()]
    found = asked(known, as_long)
    assert (found["length"].pairs, found["length"].passed) == (0, True)


def test_pairs_that_were_not_scored_do_not_count_towards_the_least():
    encoder = Reading()
    whole = Encoder(tokenizer()).encode(rows()[0].prompt, rows()[0].chosen, finished=True)
    too_long = [dataclasses.replace(row, rejected=row.rejected * 50) for row in rows()[30:]]
    short = scorer(lambda *text: -known(*text), encoder, max_tokens=len(whole) + 6)
    found = probe(short, [*rows()[:30], *too_long], draws=random.Random(0))
    assert all(one.demand == "none" for one in found)


def test_a_response_that_was_cut_is_spoilt_without_an_end_token():
    """A model that prefers ended responses is right about nothing else here."""
    cut = [dataclasses.replace(row, chosen_finished=False) for row in rows()]
    encoder = Reading()
    seen: list[bool] = []
    original = encoder.encode

    def encode(prompt: Prompt, response: str, *, finished: bool) -> list[int]:
        seen.append(finished)
        return original(prompt, response, finished=finished)

    encoder.encode = encode  # type: ignore[method-assign]
    both = [dataclasses.replace(row, rejected_finished=False) for row in cut]
    probe(scorer(known, encoder), both, draws=random.Random(0))
    assert seen
    assert not any(seen)


def test_every_pass_is_counted_and_the_last_one_shown(capsys):
    """The line comes with the last of them alone, so that one more or less would be silent."""
    asked(known)
    assert "probes       7/7 passes" in capsys.readouterr().err
    asked(known, rows(0))
    assert "7/7 passes" in capsys.readouterr().err


def test_a_probe_of_few_pairs_is_only_shown():
    as_long = [dataclasses.replace(row, rejected=row.chosen[::-1]) for row in rows()[:4]]
    backwards = {row.rejected for row in as_long}
    found = asked(
        lambda prompt, response: known(prompt, response) + 2 * (response in backwards),
        [*as_long, *rows()[4:]],
    )
    assert found["same_length"].won is not None
    assert found["same_length"].won.mean == 0.0
    assert (found["same_length"].pairs, found["same_length"].demand) == (4, "none")
