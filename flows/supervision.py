"""Keeps the processes of `make ui` running, and says what they complain of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flows.complaints import Complaints
from flows.servers import Child, ServerError

LIMIT = 5
"""Restarts of one process within `WINDOW_SECONDS`; one that ends more often counts as broken."""
WINDOW_SECONDS = 600.0


@dataclass(slots=True)
class _Watched:
    child: Child
    complaints: Complaints
    ended: list[float] = field(default_factory=list)
    again_at: float | None = None
    """When to start it again; none while it runs."""


class Supervisor:
    """Looks after children that should run until we end."""

    def __init__(self, children: Sequence[Child]) -> None:
        """The children run already."""
        self._watched = [_Watched(child, Complaints(child.log)) for child in children]

    def look(self, now: float) -> Iterator[str]:
        """What there is to say at the time `now`, in seconds; starts again what has ended.

        Raises:
            ServerError: one has ended too often.
        """
        for each in self._watched:
            yield from (f"{each.child.name}: {line}" for line in each.complaints.new())
            if each.again_at is not None and now >= each.again_at:
                each.child.start_again()
                each.again_at = None
                yield f"{each.child.name} has been started again."
            elif each.again_at is None and (code := each.child.process.poll()) is not None:
                yield _plan(each, now, code)


def _plan(each: _Watched, now: float, code: int) -> str:
    each.ended = [before for before in each.ended if now - before < WINDOW_SECONDS]
    if len(each.ended) >= LIMIT:
        raise ServerError(
            f"{each.child.name} has ended {LIMIT + 1} times in {WINDOW_SECONDS / 60:.0f} minutes; "
            f"see {each.child.log}"
        )
    wait = 2.0 ** len(each.ended)
    each.ended.append(now)
    each.again_at = now + wait
    return (
        f"{each.child.name} has ended (exit code {code}); it starts again in {wait:.0f} s. "
        f"Log: {each.child.log}"
    )
