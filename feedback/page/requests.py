"""The request bodies that the server accepts, with their limits."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from feedback.judgments import LONGEST_MS
from feedback.store.submissions import Submission

_Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{8,64}$")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Login(_Body):
    """Sign in with a token."""

    token: Annotated[str, Field(min_length=1, max_length=200)]


class NewJudgment(_Body):
    """An answer, in terms of screen sides."""

    assignment_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    choice: Literal["left", "right", "tie", "both_bad", "skip"]
    strength: Annotated[int, Field(ge=1, le=4)] | None = None
    reason: Annotated[str, Field(max_length=2000)] | None = None
    visible_ms: Annotated[int, Field(ge=0, le=LONGEST_MS)] | None = None
    key: _Key
    guidelines: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """The version that the page shows, which may be older than the server's; None: the server's."""

    @field_validator("reason")
    @classmethod
    def _no_nul(cls, reason: str | None) -> str | None:
        if "\x00" in (reason or ""):
            raise ValueError("contains the character U+0000, which no file of judgments may")
        return reason

    @model_validator(mode="after")
    def _skip_says_why(self) -> Self:
        if self.choice == "skip" and not (self.reason or "").strip():
            raise ValueError("a skip needs a reason")
        return self

    def submission(self, guideline_hash: str) -> Submission:
        """The submission for the store; a blank reason is dropped.

        `guideline_hash` is of the server's guidelines.
        """
        reason = (self.reason or "").strip()
        return Submission(
            assignment_id=self.assignment_id,
            choice=self.choice,
            strength=self.strength,
            reason=reason or None,
            visible_ms=self.visible_ms,
            key=self.key,
            guideline_hash=self.guidelines or guideline_hash,
        )


class Undo(_Body):
    """Undo the last answer; a repeated key undoes nothing more and gets the same reply."""

    key: _Key


class ExportWish(_Body):
    """Export a round in one of the forms of `feedback.store.exporting`."""

    round: Annotated[str, Field(pattern=r"^[^\x00]{1,64}$")]
    form: Literal["judgments", "trl", "label-studio", "csv"]


class PersonChange(_Body):
    """Pause or resume an annotator."""

    annotator_id: Annotated[str, Field(min_length=1, max_length=64)]
    paused: bool
