"""Results that a run has not come to: what lies there is of an earlier run, made from other inputs.

A run that waits for people, or failed, leaves the outputs of the stages after it as they were.
"""

from collections.abc import Collection, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.stage_order import round_of


def unfinished_stages(root: Path) -> frozenset[str] | None:
    """The stages that may still have to run; None if that cannot be known."""
    # Imported here because it imports DVC, which takes a second.
    from tasks.workspace.dvc_graph import DvcBusyError, GraphError, read_graph  # noqa: PLC0415

    clear_stale(root)  # Of a stage that was ended just now.
    try:
        return frozenset(read_graph(root).stale)
    except (GraphError, DvcBusyError):
        return None  # The run has ended because of it, and says so.


def rounds_that_ended(root: Path, rounds: Collection[str]) -> list[str]:
    """The first rounds, up to the one of which a stage may still have to run; none if unknown."""
    if (stages := unfinished_stages(root)) is None:
        return []
    unfinished = {round_of(name) for name in stages}
    return list(takewhile(lambda key: key not in unfinished, rounds))


def without(results: Mapping[str, Any], unfinished: Collection[str]) -> dict[str, Any]:
    """`results` (of `build_results`) without the rows of stages that have still to run."""
    of_sft = {"sft": "baseline"}
    kept: dict[str, Any] = {
        "policies": [
            row
            for row in results["policies"]
            if of_sft.get(row["name"], f"evaluate@{row['name']}") not in unfinished
        ],
        "reward_models": [
            row for row in results["reward_models"] if f"reward@{row['round']}" not in unfinished
        ],
    }
    for stage in ("test", "best_of_n"):
        kept[stage] = None if stage in unfinished else results[stage]
    rest = {
        name: found for name, found in results.items() if name != "sft" or name not in unfinished
    }
    return {**rest, **kept}
