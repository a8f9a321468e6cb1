"""Whether PPO against a reward model would over-optimise it, judged without any gold score.

Each round's labels are about responses of the newest policy. Where the reward model that PPO is
about to use hardly orders them as the annotators do, its score no longer says what is better
there, and PPO would climb it all the same. Two signals, each from labels the model never trained
on; docs/reward-guards.md says how well either predicts what PPO then does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preferences.records import Comparison, Preference
from rlhf.intervals import Interval, hits_interval
from tasks.scoring.probe_tables import drawn
from tasks.scoring.reward_accuracy import hits

EVEN = 0.5
LEAST = 100
"""Labels below which a signal raises no alarm: its interval is too wide."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What the fresh labels say; None where there are none of the kind."""

    fresh_accuracy: Interval | None
    """How often the reward model orders a fresh pair as its label does."""
    policy_wins: Interval | None
    """How often annotators chose the round's policy over SFT; None where it is SFT."""

    def as_dict(self) -> dict[str, Any]:
        """For files: each signal by name, with its interval."""
        return {
            "fresh_accuracy": self.fresh_accuracy and self.fresh_accuracy.as_dict(),
            "policy_wins": self.policy_wins and self.policy_wins.as_dict(),
        }

    def table(self) -> str:
        """Both signals as a Markdown table, each with its interval drawn from 0 to 1."""
        lines = ["| fresh labels | n | share | from 0 to 1 |", "|---|---:|---:|---|"]
        for what, share in (
            ("the reward model orders the pair as its label", self.fresh_accuracy),
            ("the round's policy was chosen over SFT", self.policy_wins),
        ):
            if share is not None:
                lines.append(f"| {what} | {share.n} | {share.mean:.3f} | `{drawn(share)}` |")
        return "\n".join(lines) + "\n"


def read_signals(
    gaps: Sequence[float], fresh: Sequence[Preference], comparisons: Sequence[Comparison], sft: str
) -> Signals:
    """The signals of a round.

    Args:
        gaps: score of chosen less rejected, of labelled fresh pairs that the model never saw.
        fresh: all labelled pairs of the round; ties count half.
        comparisons: of the round, which tell who wrote what.
        sft: the SFT policy's hash in them.
    """
    accuracy = hits_interval(hits(gaps)) if gaps else None
    by_id = {row.pair_id: row for row in comparisons}
    won = []
    for row in fresh:
        pair = by_id.get(row.pair_id)
        if pair is None or (pair.policy_a == sft) == (pair.policy_b == sft):
            continue
        ours = pair.response_b if pair.policy_a == sft else pair.response_a
        won.append(0.5 if row.is_tie else float(row.chosen == ours))
    return Signals(accuracy, hits_interval(won) if won else None)


def alarms(signals: Signals, *, min_accuracy: float, of_sft: bool) -> list[str]:
    """One sentence for each signal that warns; both need `LEAST` labels.

    None in a round whose policy is SFT (`of_sft`): there is nothing yet that could have been
    over-optimised.
    """
    found = []
    accuracy, wins = signals.fresh_accuracy, signals.policy_wins
    if of_sft:
        return []
    if accuracy is not None and accuracy.n >= LEAST and accuracy.mean < min_accuracy:
        found.append(
            f"the reward model orders {_shown(accuracy)} of {accuracy.n} fresh pairs as their "
            f"labels do, expected at least {min_accuracy} (reward.min_fresh_accuracy)"
        )
    if wins is not None and wins.n >= LEAST and wins.high < EVEN:
        found.append(
            f"annotators chose the round's policy over SFT in {_shown(wins)} of {wins.n} pairs: "
            "it is worse than what it started from"
        )
    return found


def _shown(share: Interval) -> str:
    return f"{share.mean:.3f} [{share.low:.3f}, {share.high:.3f}]"
