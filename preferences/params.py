"""How strict the gate is: section `validate` of params.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "quarantine", "warn", "off"]
"""error: any row found blocks; quarantine: the rows are set aside and counted; warn: only said;
off: not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Severities:
    """What happens to the rows that a rule finds; one field per rule."""

    blank_answers: Severity = "quarantine"
    """An answer without a visible character."""
    identical_answers: Severity = "quarantine"
    """Both answers are the same, or differ only in case and white space."""
    contradictions: Severity = "quarantine"
    """The same prompt and answers, labelled once this way and once the other: all of them."""
    duplicates: Severity = "quarantine"
    """The same prompt, answers and label again: all but the first."""
    split_leaks: Severity = "error"
    """The prompt is on the train side and on the held-out side."""
    evaluation_leaks: Severity = "error"
    """A prompt that reward models train on is one that policies are evaluated on."""
    extra_turns: Severity = "quarantine"
    """An answer goes on to speak for somebody else (`Human:` on a new line, a chat marker)."""
    damaged_text: Severity = "warn"
    """An answer was decoded wrongly (mojibake, lost or control characters)."""
    html_remains: Severity = "warn"
    """Tags or entities of HTML in an answer, outside of code."""
    personal_data: Severity = "warn"
    """E-mail addresses, telephone numbers, bank accounts, payment cards, access keys."""
    cycles: Severity = "warn"
    """Three or more answers to a prompt that are each preferred to the next, in a circle."""
    near_duplicates: Severity = "off"
    """Prompt, answers and label are nearly those of a row before (MinHash, 3 words, 0.8 alike)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateParams:
    """Section `validate` of params.yaml."""

    heldout_fraction: float = 0.15
    """Share of new prompts that is held out, 0 to below 1; old prompts stay on their side."""
    min_rows: int = 1
    """Fewest fresh preferences that must pass, or the gate blocks; at least 1."""
    max_quarantined_fraction: float = 0.25
    """Largest share of the fresh preferences that may be set aside, 0 to 1."""
    ties: Literal["drop", "half"] = "drop"
    """Pairs that annotators call equal (or equally bad): `drop` sets them aside and counts them,
    `half` trains the reward model half on either order, which pulls the two scores together."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight per kind of annotator (human, rubric, llm, ...), 0 or more; 1 where none is given."""
    severities: Severities = Severities()
    """What happens to the rows that each rule finds."""

    def __post_init__(self) -> None:
        """Refuses impossible values, naming the dotted key."""
        for wrong, message in (
            (
                not 0 <= self.heldout_fraction < 1,
                f"validate.heldout_fraction is {self.heldout_fraction}, expected 0 to below 1",
            ),
            (self.min_rows < 1, f"validate.min_rows is {self.min_rows}, expected at least 1"),
            (
                not 0 <= self.max_quarantined_fraction <= 1,
                f"validate.max_quarantined_fraction is {self.max_quarantined_fraction}, "
                "expected 0 to 1",
            ),
        ):
            if wrong:
                raise ValueError(message)
        for kind, weight in self.weights.items():
            if not weight >= 0:
                raise ValueError(f"validate.weights.{kind} is {weight}, expected 0 or more")
