"""Sources of the initial preferences: the list `prepare.sources` in params.yaml."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParams:
    """One data set of the mix."""

    path: str
    """A file, a folder of files, a folder in Hugging Face layout, or the id of a Hub data set."""
    revision: str | None = None
    """Pins the data: the commit of a Hub data set (required), or the start of a file's sha256."""
    split: str = "train"
    """Which split of a Hub data set is read."""
    format: (
        Literal[
            "preferences", "trl", "hh", "scored", "votes", "label_studio", "unpaired", "judgments"
        ]
        | None
    ) = None
    """Detected from the columns of the first row if null."""
    weight: float = 1.0
    """Factor on the weights of its pairs in reward training; above 0."""

    def __post_init__(self) -> None:
        """Refuses a weight that is not positive, and a revision too short to pin anything."""
        if not self.weight > 0:
            raise ValueError(f"prepare.sources: weight is {self.weight}, expected above 0")
        if self.revision is not None and len(self.revision) < 7:
            raise ValueError(
                f"prepare.sources: revision is {self.revision!r}, expected 7 or more digits"
            )
