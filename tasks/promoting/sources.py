"""How many items of what kind formed a model; each file is read once, whatever models it formed."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tasks.tracing.ancestry import Ancestry, Model
from tasks.tracing.contents import ContentError
from tasks.tracing.items import Part, items_of
from tasks.tracing.records import RecordError

Counted = tuple[str, str, str, str, str]
"""Kind, source, id, annotator, use."""


@dataclass(slots=True)
class Sources:
    """Different items behind a model."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, source) -> number."""
    judgments: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind of annotator, annotator) -> number."""
    uses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind of annotator, round and use) -> number."""


class Tally:
    """Counts what formed the models of a workspace."""

    def __init__(self, root: Path) -> None:
        """Reads the records.

        Raises:
            RecordError: nothing has run here.
        """
        self._ancestry = Ancestry(root)
        self._parts: dict[Part, list[Counted]] = {}

    def of(self, path: str, digest: str) -> Sources | None:
        """What formed a model; None where the records or the files are not on this machine."""
        try:
            found: dict[tuple[str, str, str], Counted] = {}
            for part in self._ancestry.parts(Model(path, digest)):
                # An item is read by several stages: PPO is offered the prompts again.
                found |= {row[:3]: row for row in self._rows(part)}
        except (RecordError, ContentError):
            return None
        sources = Sources()
        for kind, source, _, annotator, use in found.values():
            sources.counts[kind, source] += 1
            if kind == "judgment":
                sources.judgments[source, annotator] += 1
                sources.uses[source, use] += 1
        return sources

    def _rows(self, part: Part) -> list[Counted]:
        if part not in self._parts:
            self._parts[part] = [
                (one.kind, one.source, one.id, one.annotator or "", one.use)
                for one in items_of(part, self._ancestry.contents)
            ]
        return self._parts[part]
