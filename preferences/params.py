"""How strict the gate is: section `validate` of params.yaml."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "quarantine", "warn", "off"]
"""error: more rows than the limit block the data; quarantine: the rows are set aside and counted;
warn: reported only; off: not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Severities:
    """What happens to the rows that a rule finds; one field per rule."""

    blank_responses: Severity = "quarantine"
    """A response without a visible character."""
    identical_responses: Severity = "quarantine"
    """Both responses are the same, or differ only in case and white space."""
    identical_tokens: Severity = "quarantine"
    """The model sees no difference: both responses have the same tokens within its limit."""
    contradictions: Severity = "quarantine"
    """The same prompt and responses with opposite labels; applies to all of these rows."""
    duplicates: Severity = "quarantine"
    """The same prompt, responses and label again; applies to all but the first."""
    split_leaks: Severity = "error"
    """The prompt is on both the train side and the held-out side."""
    evaluation_leaks: Severity = "error"
    """A training prompt of reward models is also an evaluation prompt of policies."""
    near_leaks: Severity = "warn"
    """A prompt of the train side nearly equals a held-out or evaluation prompt (MinHash)."""
    extra_turns: Severity = "quarantine"
    """A response continues with another speaker's turn (`Human:` on a new line, a chat marker)."""
    damaged_text: Severity = "warn"
    """A response was decoded wrongly (mojibake, lost or control characters)."""
    html_remains: Severity = "warn"
    """HTML tags or entities in a response, outside of code and where the prompt asks for none."""
    other_language: Severity = "warn"
    """A response is in another language or script than its prompt or the other response."""
    token_limit: Severity = "warn"
    """Prompt and response exceed the model's limit (`reward.max_tokens`); not trained on."""
    personal_data: Severity = "warn"
    """E-mail addresses, telephone numbers, bank accounts, payment cards, national ids, access
    keys, and `personal_patterns`."""
    cycles: Severity = "warn"
    """Three or more responses to a prompt are preferred to each other in a cycle."""
    near_duplicates: Severity = "warn"
    """Prompt, responses and label nearly equal those of an earlier row (MinHash, `alike`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The bound of one number about the data as a whole."""

    severity: Literal["error", "warn", "off"] = "warn"
    """error: a value beyond the limit blocks the data; warn: reported only."""
    limit: float
    """Maximum, for `agreement` minimum; compared with the end of the interval nearer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of numbers about the data as a whole; one field per number."""

    longer_wins: Bound = Bound(limit=0.8)
    """Share of fresh pairs whose longer response was chosen."""
    first_wins: Bound = Bound(limit=0.02)
    """How far the share of votes for the response shown first is from one half, if it is known
    which was."""
    agreement: Bound = Bound(limit=0.2)
    """Krippendorff's alpha between the annotators, at least."""
    weak_annotators: Bound = Bound(limit=0)
    """Annotators who agree with the others less often than average, beyond the chance that one
    of so many does."""
    length_drift: Bound = Bound(limit=0.2)
    """Kolmogorov-Smirnov distance of response lengths between this round and earlier ones."""
    score_drift: Bound = Bound(limit=0.2)
    """The same distance for margins: how much better annotators found the chosen response."""
    prompt_drift: Bound = Bound(limit=0.2)
    """Largest change in the share of prompts that contain any one word."""
    language_drift: Bound = Bound(limit=0.05)
    """Largest change in the share of responses in any one language or script."""


_EXTREMES: Mapping[str, tuple[float, float]] = {
    "first_wins": (0, 0.5),
    "agreement": (-1, 1),
    "weak_annotators": (0, math.inf),
}
"""Least and largest value of each number that is not a share or distance from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateParams:
    """Section `validate` of params.yaml."""

    heldout_fraction: float = 0.1667
    """Share of new prompts to hold out, 0 to below 1; known prompts stay on their side."""
    min_rows: int = 1
    """Fewest fresh preferences that must pass, otherwise the gate blocks; at least 1. Where nobody
    labels, the fewest of the initial ones."""
    max_quarantined_fraction: float = 0.25
    """Largest share of the fresh preferences that may be quarantined, 0 to 1; of the initial ones
    where nobody labels."""
    ties: Literal["drop", "half"] = "drop"
    """Pairs judged equal (or equally bad): `drop` leaves them out and counts them, `half` trains
    the reward model half on either order, which pulls the two scores together."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight per kind of annotator (human, rubric, reward_model, llm, import), 0 or more; 1 by
    default."""
    human_labels: Mapping[str, int] = field(default_factory=dict)
    """Per round, the fewest fresh pairs that people must judge, otherwise the gate blocks."""
    alike: float = 0.8
    """Similarity from which rows are near: Jaccard index of 3-word shingles, above 0 to 1."""
    severities: Severities = Severities()
    """What happens to the rows that each rule finds."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Per rule, the largest share of all rows that may break it, 0 to 1. More blocks the data
    (error, quarantine) or is reported (warn). By default 1 for quarantine and 0 otherwise."""
    bounds: Bounds = Bounds()
    """Bounds of numbers about the data as a whole."""
    personal_patterns: Mapping[str, str] = field(default_factory=dict)
    """Name -> regular expression of further kinds for `personal_data`, such as staff numbers."""

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
        for bounded in dataclasses.fields(Bounds):
            limit = getattr(self.bounds, bounded.name).limit
            low, high = _EXTREMES.get(bounded.name, (0, 1))
            expected = f"{low} to {high}" if math.isfinite(high) else f"{low} or more"
            yield f"bounds.{bounded.name}.limit", limit, low <= limit <= high, expected
        for name, pattern in self.personal_patterns.items():
            key, expected = f"personal_patterns.{name}", "a regular expression that needs a text"
            yield key, pattern, _finds_something(pattern), expected

    def limit(self, rule: str) -> float:
        """The largest share of rows that may break a rule."""
        severity: Severity = getattr(self.severities, rule)
        return self.limits.get(rule, 1.0 if severity == "quarantine" else 0.0)


def _finds_something(pattern: str) -> bool:
    """Whether a regular expression can be compiled and does not find an empty text."""
    try:
        return re.compile(pattern).search("") is None
    except re.error:
        return False
