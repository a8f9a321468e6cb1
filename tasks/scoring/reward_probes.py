"""Questions to a reward model whose answers are known without any gold score, before PPO uses it.

A probe is a set of pairs of which one side ought to score higher: the labels of held-out pairs, or
a response against what became of it when it was spoilt. All but `labels` are of the round's own
held-out pairs, where it has enough of them.

    labels        the side that annotators chose, on the held-out pairs of all rounds so far
    newest        the same on the round's own: of two good responses either may be chosen, so that
                  they need not agree with the model more often than not
    length        the same where the model and the rule "the longer response wins" disagree
                  (McNemar 1947): above one half means better than the rule, and a model that
                  hardly ever disagrees is the rule
    same_length   the same where the lengths differ by at most a tenth
    empty         the chosen response against no response at all
    shuffled      ... against its own words in another order
    cut           ... against its first half, ended there
    other_prompt  ... against the chosen response to another prompt
    repeated      ... against itself, said twice

Which of them can block a round, and why the others cannot, is in docs/reward-guards.md.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from preferences.records import Preference, prompt_text
from rlhf.compute import Compute
from rlhf.intervals import Interval
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder, score_rows
from tasks.running.progress import Progress
from tasks.scoring.reward_accuracy import right_order

LEAST = 100
"""Held-out pairs below which the probes decide nothing: an interval over fewer is too wide."""
FEW = 30
"""The same for the pairs of a single probe, `length` aside, which asks for disagreement itself."""
SPOILT = 200
"""Most pairs whose chosen response is spoilt; each is scored five times more."""
EVEN = 0.5
EQUAL_LENGTHS = 0.1
PASSES = 7
"""How often the model scores pairs: the round's, the others, and those spoilt in five ways."""
DISAGREEING = 0.05
"""Least share of pairs with a longer side in which a model that knows more disagrees with it."""
HARDLY_EVER = 0.2
"""A length preference gives the repeated response the higher score nearly always."""

Demand = Literal["above", "reach", "none"]
"""above: the interval lies above the limit; reach: it is not wholly below; none: only shown."""
DEMANDS: Mapping[str, tuple[Demand, float]] = {
    "labels": ("above", EVEN),
    "newest": ("reach", EVEN),
    "length": ("reach", EVEN),
    "same_length": ("reach", EVEN),
    "empty": ("reach", EVEN),
    "shuffled": ("reach", EVEN),
    "cut": ("reach", EVEN),
    "other_prompt": ("none", EVEN),
    "repeated": ("reach", HARDLY_EVER),
}


@dataclass(frozen=True, slots=True)
class Probe:
    """How often the side that ought to score higher did."""

    name: str
    pairs: int
    won: Interval | None
    """None without pairs; equal scores count half."""
    demand: Demand
    limit: float
    least: int = 0
    """Pairs below which the probe fails."""

    @property
    def passed(self) -> bool:
        """Whether the model does what the probe demands; a probe without pairs shows nothing."""
        if self.demand == "none":
            return True
        if self.pairs < self.least:
            return False
        if self.demand == "above":
            return self.won is not None and self.won.low > self.limit
        return self.won is None or self.won.high >= self.limit

    @property
    def words(self) -> str:
        """The finding in one line, such as `labels: 0.532 [0.49, 0.57] of 523 pairs, ...`."""
        wanted = {
            "above": f"expected an interval above {self.limit}",
            "reach": f"expected an interval that reaches {self.limit}",
            "none": "shown only",
        }[self.demand]
        if self.pairs < self.least:
            wanted = f"expected at least {self.least}, {wanted}"
        if self.won is None:
            return f"{self.name}: no pairs, {wanted}"
        low, high = f"{self.won.low:.3f}", f"{self.won.high:.3f}"
        return f"{self.name}: {self.won.mean:.3f} [{low}, {high}] of {self.pairs} pairs, {wanted}"


def probe(
    scorer: "Scorer",
    rows: Sequence[Preference],
    *,
    others: Sequence[Preference] = (),
    draws: random.Random,
) -> list[Probe]:
    """Every probe, in the order of `DEMANDS`.

    Args:
        scorer: what is asked, `PASSES` times.
        rows: held-out pairs of the round; ties are left out.
        others: those of other rounds.
        draws: the order of shuffled words.
    """
    rows = [row for row in rows if not row.is_tie]
    known = scorer.known([(row, row.rejected, row.rejected_finished) for row in rows])
    labelled = [row for row in others if not row.is_tie]
    earlier = scorer.known([(row, row.rejected, row.rejected_finished) for row in labelled])
    found = {
        "labels": [*known, *earlier],
        "newest": known,
        "length": [(row, gap) for row, gap in known if gap * _longer(row) < 0],
        "same_length": [(row, gap) for row, gap in known if _equally_long(row)],
    }
    some = rows[:SPOILT]
    for name, texts in _spoilt(some, draws).items():
        asked = [
            # Ended or cut as the chosen one was, so that the texts are all that differs.
            (row, text, row.chosen_finished)
            for row, text in zip(some, texts, strict=True)
            if text.split() != row.chosen.split()
        ]
        found[name] = scorer.known(asked)
    unequal = sum(_longer(row) != 0 for row, _ in known)
    scored = {name: len(known) for name in DEMANDS} | {"labels": len(found["labels"])}
    return [_judged(name, found[name], scored[name], unequal) for name in DEMANDS]


def failures(probes: Sequence[Probe]) -> list[str]:
    """One line for each probe that the model fails."""
    return [found.words for found in probes if not found.passed]


def undecided(probes: Sequence[Probe]) -> str | None:
    """Why no probe decides anything, and what to do about it; None where one does."""
    if any(found.demand != "none" for found in probes):
        return None
    scored = next(found.pairs for found in probes if found.name == "labels")
    return (
        f"the probes decide nothing: they need at least {LEAST} held-out pairs that can be scored, "
        f"found {scored} (without ties and what is longer than reward.max_tokens); give more pairs "
        "or hold out more of them (prepare.heldout_preferences of your own pairs, "
        "validate.heldout_fraction of labels)"
    )


class Scorer:
    """Scores of responses, those of the chosen ones computed once."""

    def __init__(
        self,
        model: RewardModel,
        encoder: Encoder,
        compute: Compute,
        *,
        max_tokens: int,
        progress: Progress,
    ):
        """Takes a model as PPO will use it: an ensemble as one.

        Args:
            model: the model.
            encoder: of the model.
            compute: where the model is.
            max_tokens: a response with its prompt that is longer is not asked about.
            progress: counts the passes.
        """
        self._model, self._encoder, self._compute = model, encoder, compute
        self._max_tokens, self._progress = max_tokens, progress
        self._known: dict[tuple[int, ...], float] = {}

    def known(
        self, pairs: Sequence[tuple[Preference, str, bool]]
    ) -> list[tuple[Preference, float]]:
        """Rows with their gap, without those of which a side is too long."""
        rows = [row for row, _, _ in pairs]
        found = zip(rows, self.gaps(pairs), strict=True)
        return [(row, gap) for row, gap in found if gap is not None]

    def gaps(self, pairs: Sequence[tuple[Preference, str, bool]]) -> list[float | None]:
        """Score of each row's chosen response less that of another; None where one is too long."""
        encoded = [
            (
                tuple(self._encoder.encode(row.prompt, row.chosen, finished=row.chosen_finished)),
                tuple(self._encoder.encode(row.prompt, text, finished=finished)),
            )
            for row, text, finished in pairs
        ]
        new = {ids for sides in encoded for ids in sides if len(ids) <= self._max_tokens}
        asked = sorted(new - self._known.keys())
        scores = score_rows(self._model, asked, pad_id=self._encoder.pad_id, compute=self._compute)
        self._known |= dict(zip(asked, scores, strict=True))
        self._progress.step()
        sides = [(self._known.get(good), self._known.get(bad)) for good, bad in encoded]
        return [None if good is None or bad is None else good - bad for good, bad in sides]


def _spoilt(rows: Sequence[Preference], draws: random.Random) -> dict[str, list[str]]:
    """Probe -> what becomes of each row's chosen response."""
    words = [row.chosen.split() for row in rows]
    return {
        "empty": ["" for _ in rows],
        "shuffled": [" ".join(draws.sample(each, len(each))) for each in words],
        "cut": [" ".join(each[: len(each) // 2]) for each in words],
        "other_prompt": [_next_of_another_prompt(rows, place) for place in range(len(rows))],
        "repeated": [f"{row.chosen} {row.chosen}" for row in rows],
    }


def _next_of_another_prompt(rows: Sequence[Preference], place: int) -> str:
    """The next row's chosen response, counted round, whose prompt is another; else its own."""
    own = prompt_text(rows[place].prompt)
    following = [*rows[place + 1 :], *rows[:place]]
    return next(
        (row.chosen for row in following if prompt_text(row.prompt) != own), rows[place].chosen
    )


def _judged(
    name: str, found: Sequence[tuple[Preference, float]], known: int, unequal: int
) -> Probe:
    """The probe; of `known` scored pairs, `unequal` have sides of different lengths."""
    demand, limit = DEMANDS[name]
    if known < LEAST or (name != "length" and len(found) < FEW):
        demand = "none"
    won = right_order([gap for _, gap in found], [row for row, _ in found])
    least = math.ceil(DISAGREEING * unequal) if name == "length" else 0
    return Probe(name, len(found), won, demand, limit, least)


def _longer(row: Preference) -> int:
    return len(row.chosen) - len(row.rejected)


def _equally_long(row: Preference) -> bool:
    return abs(_longer(row)) <= EQUAL_LENGTHS * max(len(row.chosen), len(row.rejected))
