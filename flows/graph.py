"""The plan of a flow run: the stages of DVC's graph in order, and which of them are stale."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from tasks.workspace.dvc_graph import read_graph
from tasks.workspace.stage_order import ordered, round_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One stage of the pipeline."""

    name: str
    """DVC's name, such as `sft` or `ppo@r1`."""
    round: str | None
    """Key of the round that it belongs to, None outside of rounds."""
    gpu: bool
    """Whether it uses the accelerator (`meta: {gpu: true}` in dvc.yaml)."""
    ends_round: bool
    """Whether it is the last stage of its round."""
    stale: bool
    """Whether it may have to run: it has changed, or depends on a stage that may have to run."""


def plan(root: Path, until: str | None = None) -> list[PlannedStage]:
    """The stages of `root`'s dvc.yaml in the order in which they run. DVC is asked once for all.

    Args:
        root: the workspace.
        until: the last stage that is wanted, with all that it needs; None: all stages.

    Raises:
        GraphError: there is no DVC repository, or dvc.yaml is not valid.
        DvcBusyError: another DVC command works here.
    """
    graph = read_graph(root)
    names = list(ordered(graph.needs))
    wanted = set() if until is None else needed(until, graph.needs)
    last_of_round = {round_of(name): name for name in names}
    return [
        PlannedStage(
            name=name,
            round=round_of(name),
            gpu=name in graph.gpu,
            ends_round=round_of(name) is not None and last_of_round[round_of(name)] == name,
            stale=name in graph.stale,
        )
        for name in names
        if until is None or name in wanted
    ]


def needed(name: str, needs: Mapping[str, AbstractSet[str]]) -> set[str]:
    """The stage and all that it depends on, however far away."""
    found: set[str] = set()
    to_visit = [name]
    while to_visit:
        if (stage := to_visit.pop()) not in found:
            found.add(stage)
            to_visit += needs[stage]
    return found


def plan_line(stages: list[PlannedStage]) -> str:
    """The plan for the log, with a star where a stage uses the accelerator."""
    stale = [f"{planned.name}{'*' if planned.gpu else ''}" for planned in stages if planned.stale]
    if not stale:
        return f"All {len(stages)} stages are unchanged; nothing to run."
    return (
        f"{len(stale)} of {len(stages)} stages are stale or depend on one that is (* on the "
        f"accelerator where there is one): {', '.join(stale)}"
    )
