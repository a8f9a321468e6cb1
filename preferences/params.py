"""How strict the gate is: section `validate` of params.yaml."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "quarantine", "warn", "off"]
"""error: more than the limit blocks; quarantine: the rows are set aside and counted; warn: only
said; off: not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Severities:
    """What happens to the rows that a rule finds; one field per rule."""

    blank_answers: Severity = "quarantine"
    """An answer without a visible character."""
    identical_answers: Severity = "quarantine"
    """Both answers are the same, or differ only in case and white space."""
    identical_tokens: Severity = "quarantine"
    """Both answers are the same to the model: the same tokens, cut to its limit."""
    contradictions: Severity = "quarantine"
    """The same prompt and answers, labelled once this way and once the other: all of them."""
    duplicates: Severity = "quarantine"
    """The same prompt, answers and label again: all but the first."""
    split_leaks: Severity = "error"
    """The prompt is on the train side and on the held-out side."""
    evaluation_leaks: Severity = "error"
    """A prompt that reward models train on is one that policies are evaluated on."""
    near_leaks: Severity = "warn"
    """A prompt of the train side is nearly one that is held out or evaluated on (MinHash)."""
    extra_turns: Severity = "quarantine"
    """An answer goes on to speak for somebody else (`Human:` on a new line, a chat marker)."""
    damaged_text: Severity = "warn"
    """An answer was decoded wrongly (mojibake, lost or control characters)."""
    html_remains: Severity = "warn"
    """Tags or entities of HTML in an answer, outside of code."""
    other_language: Severity = "warn"
    """An answer is in another language or script than its prompt or the other answer."""
    token_limit: Severity = "warn"
    """Prompt and answer are over the model's limit (`reward.max_tokens`); not trained on."""
    personal_data: Severity = "warn"
    """E-mail addresses, telephone numbers, bank accounts, payment cards, access keys."""
    cycles: Severity = "warn"
    """Three or more answers to a prompt that are each preferred to the next, in a circle."""
    near_duplicates: Severity = "warn"
    """Prompt, answers and label are nearly those of a row before (MinHash, `alike`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What one number about the data as a whole may be."""

    severity: Literal["error", "warn", "off"] = "warn"
    """error: beyond the limit blocks; warn: only said."""
    limit: float
    """The most it may be; of `agreement` the least. Compared with the near end of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of numbers about the data as a whole; one field per number."""

    longer_wins: Bound = Bound(limit=0.8)
    """Share of fresh pairs whose longer answer was chosen."""
    first_wins: Bound = Bound(limit=0.02)
    """How far the share of votes for the answer shown first is from one half."""
    agreement: Bound = Bound(limit=0.2)
    """Krippendorff's alpha between the annotators, at least."""
    weak_annotators: Bound = Bound(limit=0)
    """Annotators who agree with the others less often than all do."""
    length_drift: Bound = Bound(limit=0.2)
    """Kolmogorov-Smirnov distance of answer lengths, this round against those before."""
    score_drift: Bound = Bound(limit=0.2)
    """The same distance of the margins: how much better annotators found the chosen answer."""
    prompt_drift: Bound = Bound(limit=0.2)
    """Largest change of the share of prompts that hold one word."""
    language_drift: Bound = Bound(limit=0.05)
    """Largest change of the share of answers in one language or script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateParams:
    """Section `validate` of params.yaml."""

    heldout_fraction: float = 0.1667
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
    human_labels: Mapping[str, int] = field(default_factory=dict)
    """Per round, the fewest fresh pairs that people must have judged, or the gate blocks."""
    alike: float = 0.8
    """Near means at least this similar: Jaccard index of 3-word shingles, above 0 to 1."""
    severities: Severities = Severities()
    """What happens to the rows that each rule finds."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Per rule, the largest share of all rows that may break it, 0 to 1. More than that blocks
    (error, quarantine) or is said (warn). 1 for quarantine and 0 for others where none is given."""
    bounds: Bounds = Bounds()
    """What numbers about the data as a whole may be."""

    def __post_init__(self) -> None:
        """Refuses impossible values, naming the dotted key."""
        for key, value, fine, expected in self._ranges():
            if not fine:
                raise ValueError(f"validate.{key} is {value}, expected {expected}")

    def _ranges(self) -> Iterator[tuple[str, object, bool, str]]:
        part, quarantined = self.heldout_fraction, self.max_quarantined_fraction
        yield "heldout_fraction", part, 0 <= part < 1, "0 to below 1"
        yield "min_rows", self.min_rows, self.min_rows >= 1, "at least 1"
        yield "max_quarantined_fraction", quarantined, 0 <= quarantined <= 1, "0 to 1"
        yield "alike", self.alike, 0 < self.alike <= 1, "above 0 to 1"
        for kind, weight in self.weights.items():
            yield f"weights.{kind}", weight, weight >= 0, "0 or more"
        for key, count in self.human_labels.items():
            yield f"human_labels.{key}", count, count >= 0, "0 or more"
        rules = [each.name for each in dataclasses.fields(Severities)]
        for rule, limit in self.limits.items():
            yield f"limits.{rule}", "for no rule", rule in rules, f"one of {', '.join(rules)}"
            yield f"limits.{rule}", limit, 0 <= limit <= 1, "0 to 1"

    def limit(self, rule: str) -> float:
        """The largest share of rows that may break a rule."""
        severity: Severity = getattr(self.severities, rule)
        return self.limits.get(rule, 1.0 if severity == "quarantine" else 0.0)
