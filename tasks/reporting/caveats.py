"""What a reader has to know before believing the headline numbers of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.reporting.without_gold import (
    at_chance,
    below_baselines,
    by_order,
    undistinguished,
    without_verdict,
    worse_than_sft,
)

EVEN = 0.5
"""The win rate of a policy against itself."""


def caveats(results: Mapping[str, Any]) -> list[str]:
    """One sentence for each result that contradicts the headline; empty when nothing does.

    Args:
        results: from `tasks.reporting.summary.build_results`.
    """
    by_test = contradiction(results)
    tested = [results["test"]] if results["test"] else []
    return [
        *([by_test] if by_test else []),
        *rounds_without_gain(results).values(),
        *undistinguished([*results["policies"], *tested]).values(),
        *worse_than_sft([*results["policies"], *tested]),
        *without_verdict([*results["policies"], *tested]),
        *by_order([*results["policies"], *tested]),
        *answers_of_servers([*results["policies"], *tested]),
        *rollouts_of_servers(results.get("served_rollouts", [])),
        *at_chance(results["reward_models"]),
        *below_baselines(results["reward_models"]),
    ]


def contradiction(results: Mapping[str, Any]) -> str | None:
    """A sentence if the intervals on the test and the held-out prompts do not overlap, else None.

    Compares gold scores, or win rates against SFT where there is no gold score.
    """
    test = results["test"]
    held_out = test and next((p for p in results["policies"] if p["name"] == test["policy"]), None)
    if not held_out:
        return None
    for field, words, digits in (
        ("gold", "gold", 2),
        ("win_rate_vs_sft", "win rate against SFT", 3),
    ):
        ours, theirs = held_out.get(field), test.get(field)
        if ours and theirs:
            if theirs["low"] <= ours["high"] and ours["low"] <= theirs["high"]:
                return None
            return (
                f"The test prompts contradict the held-out ones: {words} "
                f"{_interval(theirs, digits)} on the test prompts, "
                f"{_interval(ours, digits)} on the held-out ones."
            )
    return None


def rounds_without_gain(results: Mapping[str, Any]) -> dict[str, str]:
    """Round -> a sentence, for each round not shown to be better than what it is compared with.

    That is the one that sampled its comparisons, and nearly always the one that it started from.
    """
    found = {}
    elsewhere = results.get("started_elsewhere", [])
    for policy in results["policies"]:
        wins = policy.get("win_rate_vs_previous")
        # Of a round that began with SFT, `undistinguished` and `worse_than_sft` say it.
        of_sft = policy.get("gold") is None and wins == policy.get("win_rate_vs_sft")
        if wins and wins["low"] <= EVEN and not of_sft:
            name = policy["name"]
            how = "worse than" if wins["high"] < EVEN else "not distinguishable from"
            other = "that sampled its comparisons" if name in elsewhere else "it started from"
            found[name] = (
                f"{name} is {how} the policy {other}: "
                f"its win rate against it is {_interval(wins, 3)}."
            )
    return found


def answers_of_servers(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence if policies were measured on a server's responses, which need not repeat."""
    served = [policy for policy in policies if policy.get("served_logprob_difference")]
    if not served:
        return []
    largest = max(max(policy["served_logprob_difference"].values()) for policy in served)
    return [
        "Responses came from a server (run.generation), so the same run may give others. Its "
        f"log-probabilities differ from this machine's by up to {largest:.2g} nats per token."
    ]


def rollouts_of_servers(rounds: Sequence[str]) -> list[str]:
    """A sentence if policies were trained on a server's responses."""
    if not rounds:
        return []
    return [
        f"A server sampled the rollouts of {', '.join(rounds)} (ppo.rollouts), so the same run may "
        "give other policies."
    ]


def _interval(estimate: Mapping[str, float], digits: int) -> str:
    mean, low, high = (f"{estimate[bound]:.{digits}f}" for bound in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
