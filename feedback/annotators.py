"""Who judges pairs: simulated annotators who follow a rubric, and files of judgments.

Every annotator, people included (`feedback.people`), has one method, `judge(pairs)`: it returns all
judgments of these pairs, or raises `MissingJudgmentsError` with the number still missing. It never
blocks and never invents a judgment.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from feedback.formats.label_studio import is_export, read_export
from feedback.judges import LanguageModelParams
from feedback.judgments import Pair, Refusal, consistent, read_judgments
from preferences.records import Choice, Judgment, oriented

Score = Callable[[str, str, bool], float]
"""Gold score of (prompt, response, whether it is finished); a higher one is better."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelParams:
    """Section `label` of params.yaml."""

    annotators: Literal["rubric", "file", "people", "language_model", "reward_model", "none"] = (
        "rubric"
    )
    """Who judges: simulated annotators with the gold rubric, a judgments file, people, a language
    model behind an endpoint, a reward model; or nobody (`none`): the preferences that `prepare`
    names are then all there is."""
    overlap: int = 1
    """Judgments per pair, each by a different annotator; at least 1."""
    simulated: int = 4
    """rubric: number of simulated annotators, sim-1 ... sim-n; at least `overlap`."""
    tau: float = 1.0
    """rubric: temperature of Bradley-Terry noise, in gold points; P(a) = sigmoid((a - b) / tau)."""
    tie_band: float = 0.0
    """rubric: a perceived difference of fewer gold points is a tie; 0: no ties."""
    flip: float = 0.0
    """rubric: probability, 0 to 1, that a choice is recorded the wrong way round."""
    file: str | None = None
    """file: path of the judgments (JSON Lines), or of an export from Label Studio (JSON), relative
    to the repository root."""
    store: str = ".work/feedback/feedback.db"
    """people: the labelling server's database, a path relative to the repository root or a
    SQLAlchemy URL."""
    language_model: LanguageModelParams | None = None
    """language_model: which model, and how it is queried."""
    reward_model: str | None = None
    """reward_model: its folder in Hugging Face format, relative to the repository root; the
    judgments name its hash."""

    def __post_init__(self) -> None:
        """Refuses impossible combinations, naming the dotted key."""
        for wrong, message in (
            (self.overlap < 1, f"label.overlap is {self.overlap}, expected at least 1"),
            (
                self.annotators == "rubric" and self.simulated < self.overlap,
                f"label.simulated is {self.simulated}, expected at least label.overlap "
                f"({self.overlap}): each pair goes to that many different annotators",
            ),
            (not self.tau > 0, f"label.tau is {self.tau}, expected more than 0"),
            (
                self.tie_band < 0,
                f"label.tie_band is {self.tie_band}, expected 0 or more",
            ),
            (not 0 <= self.flip <= 1, f"label.flip is {self.flip}, expected 0 to 1"),
            (
                self.annotators == "file" and not self.file,
                "label.file is missing, and label.annotators is file",
            ),
            (
                self.annotators in ("language_model", "reward_model")
                and getattr(self, self.annotators) is None,
                f"label.{self.annotators} is missing, and label.annotators is {self.annotators}",
            ),
            (
                self.annotators in ("language_model", "reward_model") and self.overlap > 1,
                f"label.overlap is {self.overlap}, expected 1: the {self.annotators} is one "
                "annotator, who judges a pair the same way every time",
            ),
        ):
            if wrong:
                raise ValueError(message)


SHOWN_REFUSALS = 20
"""Of so many refused judgments each has a line of its own."""


class MissingJudgmentsError(RuntimeError):
    """The judgments of a round are incomplete; the stage exits 5 and is run again later."""

    def __init__(self, round_key: str, *, missing: int, wanted: int, note: str = "") -> None:
        """Takes the numbers of missing and wanted judgments; `note` says where they come from."""
        self.round_key, self.missing, self.wanted = round_key, missing, wanted
        text = f"round {round_key} waits for {missing} of {wanted} judgments"
        super().__init__(f"{text}; {note}" if note else text)


class RubricAnnotator:
    """Simulated annotators who perceive the gold difference with logistic noise (Bradley-Terry).

    perceived = gold(a) - gold(b) + tau * logit(u), u uniform in (0, 1), so that
    P(perceived > 0) = sigmoid((gold(a) - gold(b)) / tau). The sign gives the choice, the magnitude
    the strength. u depends only on seed, annotator and content of the pair: the same pair always
    gets the same label, regardless of other pairs and of the order of the responses.
    """

    STRENGTH_STEPS = (1.0, 2.0, 4.0)
    """Perceived differences, in gold points, at which the strength becomes 2, 3 and 4."""

    def __init__(self, score: Score, params: LabelParams, *, seed: int, rubric: str) -> None:
        """`rubric` identifies the scoring function (a hash of its code) in `annotator_version`."""
        self._score, self._params, self._seed = score, params, seed
        content = [rubric, seed, params.tau, params.tie_band, params.flip]
        self.version = _sha256(json.dumps(content))[:16]
        self._names = [f"sim-{number}" for number in range(1, params.simulated + 1)]

    def judge(self, pairs: Sequence[Pair]) -> list[Judgment]:
        """`overlap` judgments of each pair."""
        return [self._judge_one(pair, name) for pair in pairs for name in self._annotators_of(pair)]

    def _annotators_of(self, pair: Pair) -> list[str]:
        # Rendezvous hashing: who judges a pair does not depend on the other pairs of the round.
        ranked = sorted(self._names, key=lambda name: self._uniform(pair, name, "assign"))
        return sorted(ranked[: self._params.overlap], key=self._names.index)

    def _judge_one(self, pair: Pair, name: str) -> Judgment:
        perceived = self._perceived(pair, name)
        choice: Choice = "a" if perceived > 0 else "b"
        strength: int | None = 1 + sum(abs(perceived) >= step for step in self.STRENGTH_STEPS)
        if abs(perceived) < self._params.tie_band:
            choice, strength = "tie", None
        return Judgment.of(
            pair,
            annotator_id=name,
            kind="rubric",
            annotator_version=self.version,
            choice=choice,
            strength=strength,
            shown_order="AB" if self._uniform(pair, name, "side") < 0.5 else "BA",
        )

    def _perceived(self, pair: Pair, name: str) -> float:
        """The noisy difference gold(a) - gold(b), in gold points; `flip` may reverse its sign."""
        if not isinstance(pair.prompt, str):
            raise TypeError(
                f"pair {pair.pair_id}: the rubric scores text prompts, but this one has messages; "
                "expected label.annotators file or people"
            )
        gold_a = self._score(pair.prompt, pair.response_a, pair.finished_a)
        gold_b = self._score(pair.prompt, pair.response_b, pair.finished_b)
        u = self._uniform(pair, name, "noise")
        noise = self._params.tau * math.log(u / (1 - u))
        # The noise belongs to the responses, not to their positions.
        turned = 1 if pair.response_a <= pair.response_b else -1
        perceived = gold_a - gold_b + turned * noise
        return -perceived if self._uniform(pair, name, "flip") < self._params.flip else perceived

    def _uniform(self, pair: Pair, name: str, use: str) -> float:
        """A number in (0, 1), determined by seed, annotator, pair and use."""
        digest = _sha256(f"{self._seed}/{name}/{pair.pair_id}/{use}")
        # 52 bits plus one half: rounding cannot reach either end.
        return (int(digest[:13], 16) + 0.5) / 2**52


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a source has for a round."""

    judgments: list[Judgment]
    refused: list[Refusal]
    missing: int
    """Number of judgments still missing."""


class FileAnnotator:
    """Judgments from a file: JSON Lines, or an export from Label Studio.

    The file may contain several rounds. A judgment counts for a pair with its content, whichever
    round it was given in; one that names this round but a pair outside it is refused.
    """

    def __init__(self, path: Path, params: LabelParams) -> None:
        """Reads nothing yet."""
        self._path, self._params = path, params

    def judge(self, pairs: Sequence[Pair]) -> list[Judgment]:
        """At least `overlap` judgments of each pair.

        Raises:
            MissingJudgmentsError: the file lacks some.
            JudgmentError: the file is missing, or a line (or task) is not a judgment.
        """
        collected = self.collect(pairs)
        for line in refusal_lines(collected.refused):
            _log.warning("%s: %s", self._path, line)
        if collected.missing:
            note = f"expected in {self._path}"
            if collected.refused:
                note += f", where {len(collected.refused)} were refused"
            raise MissingJudgmentsError(
                pairs[0].round,
                missing=collected.missing,
                wanted=len(pairs) * self._params.overlap,
                note=note,
            )
        return collected.judgments

    def collect(self, pairs: Sequence[Pair]) -> Collected:
        """What the file has for these pairs, what is refused and how many are missing."""
        if is_export(self._path):
            judgments = read_export(self._path, pairs[0].round)
        else:
            judgments = read_judgments(self._path)
        standing, refused = consistent(judgments, {pair.pair_id: pair for pair in pairs})
        found = sort_out(standing, pairs, overlap=self._params.overlap)
        return replace(found, refused=[*refused, *found.refused])


def refusal_lines(refused: Sequence[Refusal]) -> Iterator[str]:
    """Which judgments were refused and why, for people; of many the first."""
    for refusal in refused[:SHOWN_REFUSALS]:
        yield f"judgment {refusal.judgment_id} refused: {refusal.reason}"
    if (others := len(refused) - SHOWN_REFUSALS) > 0:
        yield f"{others:,} more judgments refused"


def sort_out(judgments: Sequence[Judgment], pairs: Sequence[Pair], *, overlap: int) -> Collected:
    """Assigns judgments to their pairs, in the order of the pairs."""
    known = {pair.pair_id: pair for pair in pairs}
    rounds = {pair.round for pair in pairs}
    taken: dict[str, dict[str, Judgment]] = {key: {} for key in known}
    refused: list[Refusal] = []
    for judgment in judgments:
        pair = known.get(judgment.pair_id)
        if pair is not None:
            turned = oriented(judgment, pair)
            _keep(taken[pair.pair_id], turned, this_round=judgment.round == pair.round)
        elif judgment.round in rounds:
            reason = f"round {judgment.round} does not contain the pair {judgment.pair_id}"
            refused.append(Refusal(judgment_id=judgment.judgment_id, reason=reason))
    ordered = [taken[key][name] for key in known for name in sorted(taken[key])]
    missing = sum(max(0, overlap - len(found)) for found in taken.values())
    return Collected(judgments=ordered, refused=refused, missing=missing)


def _keep(found: dict[str, Judgment], judgment: Judgment, *, this_round: bool) -> None:
    """One judgment per annotator: this round's takes precedence over an earlier round's."""
    if this_round or judgment.annotator_id not in found:
        found[judgment.annotator_id] = judgment


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
