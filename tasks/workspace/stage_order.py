"""The stages in the order in which they run: round after round."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from graphlib import TopologicalSorter


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
