"""Sources of the initial preferences: the list `prepare.sources` in params.yaml."""

from dataclasses import dataclass
from typing import Literal

from preferences.formats.maps import layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParams:
    """One data set of the mix."""

    path: str
    """A file, a folder of files, a folder in Hugging Face layout, one that `save_to_disk` wrote,
    or the id of a Hub data set."""
    revision: str | None = None
    """Pins the data: the commit of a Hub data set (required), or the start of a file's sha256."""
    split: str = "train"
    """Which split of a Hub data set, of a saved one that has several, or of a folder whose files
    are called after splits, is read."""
    format: (
        Literal[
            "preferences", "trl", "hh", "scored", "votes", "label_studio", "unpaired", "judgments"
        ]
        | None
    ) = None
    """Detected from the columns of the first row if null."""
    map: str | None = None
    """For other columns: the name of a well-known layout, or field=column,... instead of format."""
    skip_malformed: int = 0
    """How many malformed rows may be set aside and listed, instead of refusing the data."""
    weight: float = 1.0
    """Factor on the weights of its pairs in reward training; above 0."""

    def __post_init__(self) -> None:
        """Refuses impossible values, a revision too short to pin anything, and a wrong map."""
        if not self.weight > 0:
            raise ValueError(f"prepare.sources: weight is {self.weight}, expected above 0")
        if self.revision is not None and len(self.revision) < 7:
            raise ValueError(
                f"prepare.sources: revision is {self.revision!r}, expected 7 or more digits"
            )
        if self.skip_malformed < 0:
            raise ValueError(
                f"prepare.sources: skip_malformed is {self.skip_malformed}, expected 0 or more"
            )
        if self.map is None:
            return
        if self.format is not None:
            raise ValueError("prepare.sources: map and format exclude each other")
        try:
            layout_of(self.map)
        except ValueError as error:
            raise ValueError(f"prepare.sources: {error}") from None
