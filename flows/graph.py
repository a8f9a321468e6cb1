"""The plan of a flow run: the stages of DVC's graph in order, and which of them are stale."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from tasks.workspace.dvc_graph import read_graph


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


def plan(root: Path) -> list[PlannedStage]:
    """The stages of `root`'s dvc.yaml in the order in which they run. DVC is asked once for all.

    Raises:
        GraphError: there is no DVC repository, or dvc.yaml is not valid.
        DvcBusyError: another DVC command works here.
    """
    graph = read_graph(root)
    names = list(ordered(graph.needs))
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
    ]


def ordered(needs: Mapping[str, AbstractSet[str]]) -> Iterator[str]:
    """Each stage after what it needs, one round after the other, else as `needs` has them.

    What belongs to no round but needs one (`test` needs the last policy) comes after that round's
    own stages.
    """
    rounds = list(dict.fromkeys(map(round_of, needs)))
    latest: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        own = rounds.index(round_of(name)) if round_of(name) else -1
        latest[name] = max([own, *(latest[need] for need in needs[name])])
    position = {name: number for number, name in enumerate(needs)}

    waiting = TopologicalSorter(needs)
    waiting.prepare()
    ready: set[str] = set()
    while waiting.is_active():
        ready.update(waiting.get_ready())
        name = min(ready, key=lambda name: (latest[name], not round_of(name), position[name]))
        ready.remove(name)
        waiting.done(name)
        yield name


def round_of(stage: str) -> str | None:
    """`r1` of `ppo@r1`, None of `sft`."""
    return stage.partition("@")[2] or None
