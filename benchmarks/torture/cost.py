"""What checkpoints cost: not a trial, but what the last run of the real pipeline has noted."""

from pathlib import Path

from benchmarks.torture.world import Count, World
from tasks.reporting.summary import read_outcomes

MOST = 0.03
TRAINING = ("base", "sft", "reward", "ppo")


def checkpoint_cost(_world: World, _trials: int) -> Count:
    """The time that each training stage of this workspace stood still for its checkpoints."""
    count, shares = Count(), []
    for outcome in read_outcomes(Path.cwd()):
        if outcome["stage"].partition("@")[0] not in TRAINING or not outcome.get("checkpoints"):
            continue
        share = outcome["checkpoint_seconds"] / outcome["seconds"]
        shares.append(
            f"{outcome['stage']} {outcome['checkpoints']} in {outcome['checkpoint_seconds']:.2f} s "
            f"of {outcome['seconds']:.0f} s ({100 * share:.2f} %)"
        )
        count.add(shares[-1], {f"more than {100 * MOST:.0f} %": share > MOST})
    count.remark = "; ".join(shares) or "no run of the pipeline here has noted any"
    return count
