"""The gate before production: what is asked of a candidate, and whether it may be promoted.

Pure: `tasks.promoting.comparison` measures, here it is judged. The defaults of `Limits` are the
only place where limits are; `flows.promotion` and `python -m tasks.promote` take others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.intervals import Interval
from rlhf.params.ranges import Fraction, NonNegative, Positive

WITHDRAWN = "withdrawn data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a candidate has to keep to."""

    win_rate: Fraction = 0.5
    """The win rate over the policy in production: its whole interval on the held-out prompts has
    to lie above, and its mean on the test prompts."""
    max_kl: NonNegative = 10.0
    """Highest mean KL to SFT, in nats per response."""
    min_length: NonNegative = 0.67
    """Lowest mean length of responses in tokens, as a multiple of production's."""
    max_length: Positive = 1.5
    """Highest, likewise."""
    min_diversity: NonNegative = 0.5
    """Lowest share of different word pairs in all responses, as a multiple of production's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A candidate and the policy before it, on the same prompts of a split."""

    split: str
    judge: str
    """Who compared, in words."""
    wins: Interval
    """How often the candidate's response is preferred; ties count half."""
    skipped: int
    """Prompts about which the judge said nothing."""
    kl: Interval
    """Of the candidate to SFT, in nats per response."""
    length: float
    length_before: float
    diversity: float
    diversity_before: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was asked of the candidate."""

    name: str
    passed: bool | None
    """None: not asked."""
    found: str
    expected: str

    @property
    def words(self) -> str:
        """In one line."""
        return f"{self.name}: {self.found}, expected {self.expected}"


def checks(
    heldout: Compared,
    guard: Sequence[str] | None,
    withdrawn: str | None,
    limits: Limits,
    *,
    probed: bool = True,
) -> list[Check]:
    """Everything that is asked before the test prompts are.

    Args:
        heldout: the comparison on the held-out prompts.
        guard: what the guards of the round's reward model found; None where it has no model.
        withdrawn: the note on data that the candidate learnt from and that was withdrawn since.
        limits: those to keep to.
        probed: whether that model's probes had enough pairs to decide anything.
    """
    wins, kl = heldout.wins, heldout.kl
    longer = _ratio(heldout.length, heldout.length_before)
    diverse = _ratio(heldout.diversity, heldout.diversity_before)
    return [
        Check(
            name="win rate",
            passed=wins.low > limits.win_rate,
            found=_shown(heldout),
            expected=f"an interval above {limits.win_rate:g}",
        ),
        Check(
            name="KL to SFT",
            passed=kl.mean <= limits.max_kl,
            found=f"{kl.mean:.2f} nats",
            expected=f"at most {limits.max_kl:g}",
        ),
        Check(
            name="length",
            passed=limits.min_length <= longer <= limits.max_length,
            found=f"{heldout.length:.1f} tokens, {longer:.2f} times the {heldout.length_before:.1f}"
            " before",
            expected=f"{limits.min_length:g} to {limits.max_length:g} times",
        ),
        Check(
            name="diversity",
            passed=diverse >= limits.min_diversity,
            found=f"{heldout.diversity:.3f}, {diverse:.2f} times the "
            f"{heldout.diversity_before:.3f} before",
            expected=f"at least {limits.min_diversity:g} times",
        ),
        _of_guards(guard, probed=probed),
        Check(
            name=WITHDRAWN,
            passed=withdrawn is None,
            found=withdrawn or "none",
            expected="none",
        ),
    ]


def _of_guards(guard: Sequence[str] | None, *, probed: bool) -> Check:
    quiet = "quiet" if probed else "no warning; too few held-out pairs for any probe to decide"
    said = quiet if guard is not None else "no reward model to ask about"
    return Check(
        name="guards of the reward model",
        passed=not guard,
        found="; ".join(guard or [said]),
        expected="no probe that fails, no warning",
    )


def check_of_test_prompts(heldout: Compared, test: Compared | None, limits: Limits) -> Check:
    """Whether the test prompts contradict; None: the candidate had failed before they were asked.

    They do where the two intervals do not overlap (as the report has it), or where the candidate
    does not win there: chance that put it above the bar on the held-out prompts is unlikely to do
    so again. Its interval need not lie above the bar a second time.
    """
    expected = f"above {limits.win_rate:g}, and an interval that overlaps the held-out one"
    if test is None:
        return Check(
            name="test prompts",
            passed=None,
            found="not asked: only a candidate that passes all else is",
            expected=expected,
        )
    return Check(
        name="test prompts",
        passed=test.wins.mean > limits.win_rate
        and test.wins.low <= heldout.wins.high
        and heldout.wins.low <= test.wins.high,
        found=_shown(test),
        expected=expected,
    )


def _shown(compared: Compared) -> str:
    wins = compared.wins
    left_out = f", {compared.skipped} not judged" if compared.skipped else ""
    interval = f"{wins.mean:.3f} [{wins.low:.3f}, {wins.high:.3f}]"
    return f"{interval} of {wins.n} prompts by {compared.judge}{left_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate says about a candidate."""

    round_key: str
    digest: str
    """DVC's hash of the candidate."""
    before: str
    """The policy that it is compared with, in words."""
    before_version: str | None
    """Its version; None: SFT, before anything was promoted."""
    limits: Limits
    checks: tuple[Check, ...]
    heldout: Compared
    test: Compared | None

    @property
    def failed(self) -> tuple[str, ...]:
        """Every check that the candidate did not pass, in words; none: it may be promoted."""
        return tuple(check.words for check in self.checks if check.passed is False)

    @property
    def tells_of_withdrawn_data(self) -> bool:
        """Whether whoever has read this knows that the candidate learnt from such."""
        return any(check.name == WITHDRAWN and check.passed is False for check in self.checks)

    def table(self) -> str:
        """In Markdown."""
        marks = {True: "yes", False: "**no**", None: "-"}
        head = f"| round {self.round_key} against {self.before} | found | expected | passed |"
        rows = [
            f"| {check.name} | {check.found} | {check.expected} | {marks[check.passed]} |"
            for check in self.checks
        ]
        return "\n".join([head, "|---|---|---|---|", *rows])


def _ratio(now: float, before: float) -> float:
    """How many times as much; equal amounts, also of nothing, are once as much."""
    if now == before:
        return 1.0
    return now / before if before else float("inf")
