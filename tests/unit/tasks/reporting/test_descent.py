"""Which rounds a policy comes from, and which began elsewhere."""

from dataclasses import replace

from tasks.reporting.descent import SFT, formed_in, started_elsewhere, trained_in
from tests.unit.tasks.reporting.report_world import chained

KEYS = ("warmup", "main", "end")
"""Not in the order of the alphabet."""


def test_rounds_are_in_the_order_of_the_params() -> None:
    rounds = chained(KEYS)
    assert formed_in(rounds, "end") == trained_in(rounds, "end", 0.0) == list(KEYS)
    assert trained_in(rounds, "main", 0.0) == ["warmup", "main"]


def test_weights_go_through_the_rounds_that_a_policy_starts_from() -> None:
    """Not through those whose policies sampled its comparisons; from SFT alone through its own."""
    rounds = chained(KEYS)
    rounds["end"] = replace(rounds["end"], start="models/rounds/warmup/policy")
    assert trained_in(rounds, "end", 0.5) == ["warmup", "end"]
    assert trained_in(rounds, "end", 1.0) == ["end"]


def test_a_round_that_starts_from_what_sampled_for_it_began_nowhere_else() -> None:
    rounds = chained(KEYS)
    assert started_elsewhere(rounds, 0.0) == []
    anew = rounds | {"end": replace(rounds["end"], start=SFT)}
    assert started_elsewhere(anew, 0.0) == ["end"]
    # Mixed with SFT, a policy starts from neither; the first round is SFT's anyway.
    assert started_elsewhere(rounds, 0.5) == ["main", "end"]
