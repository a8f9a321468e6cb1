"""A source of any format as candidates for the gate, which can be read repeatedly.

`check` reads it twice, first to inspect it and then to write what passed and what did not, so that
a file may be larger than memory.
"""

from collections.abc import Iterator

from preferences.formats.reading import Item, Source
from preferences.formats.writing import Unsettled
from preferences.intake import on_its_side
from preferences.measures import Candidate
from preferences.records import Voted
from preferences.statistics import Votes


class Settled:
    """The preferences of a source with their sides; each pass also counts what gave none."""

    def __init__(self, source: Source, heldout_fraction: float, *, keep_ties: bool = False):
        """Reads nothing yet."""
        self._source = source
        self._heldout_fraction = heldout_fraction
        self._keep_ties = keep_ties
        self.unsettled = Unsettled()
        self.votes = Votes()

    @property
    def malformed(self) -> list[str]:
        """The rows that the last pass set aside as malformed, each with its first problem."""
        return self._source.aside

    def __iter__(self) -> Iterator[Candidate]:
        """All preferences in the order of the source.

        Raises:
            MalformedDataError: at the end, if anything was wrong or has changed.
        """
        self.unsettled, self.votes = Unsettled(), Votes()
        has_sides = self._source.format == "preferences"
        for sourced in self.unsettled.settle(self._counted(), keep_ties=self._keep_ties):
            if has_sides:  # As `prepare.sources` takes them.
                yield Candidate(sourced, fresh=True)
            else:
                yield on_its_side(sourced, self._heldout_fraction)

    def _counted(self) -> Iterator[Item]:
        for item in self._source:
            if isinstance(item, Voted):
                self.votes.add(item.comparison, item.judgments)
            yield item
