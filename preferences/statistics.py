"""Statistics of a preference data set, with 95 % intervals where they exist."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, fsum, lgamma, log, sqrt
from typing import TypeVar

from preferences.judging import standing
from preferences.records import Comparison, Judgment, oriented

Z95 = 1.959964
"""97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of n cases, with Wilson's 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def hits(self) -> int:
        """The number of cases that it is a share of."""
        return round(self.mean * self.n)

    def to_json(self) -> dict[str, float | int]:
        """For reports."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def share(hits: float, n: int) -> Share | None:
    """`hits` of `n` with Wilson's score interval (1927) of 95 %; None if `n` is 0.

    What is undecided may count as half, which leaves the interval on the wide side.
    """
    if n == 0:
        return None
    mean = hits / n
    return Share(mean, *wilson(mean, n), n)


def wilson(mean: float, n: float) -> tuple[float, float]:
    """The ends of Wilson's interval for a share of n cases, more than 0."""
    spread = Z95**2 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = Z95 * sqrt(mean * (1 - mean) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


Units = Sequence[Mapping[str, str]]
"""Per pair, each annotator's choice, without skips."""


class Votes:
    """Collects the votes on pairs, one pair at a time."""

    def __init__(self) -> None:
        """Starts without pairs."""
        self.units: list[dict[str, str]] = []
        """Pairs with two or more votes, without skips; the earliest first where times are known."""
        self.first = 0
        """Votes for the response that was shown first."""
        self.second = 0
        self.human_pairs = 0
        """Pairs judged, not skipped, by a person."""

    def add(self, comparison: Comparison, judgments: Iterable[Judgment]) -> None:
        """Counts all judgments of one pair.

        Raises:
            JudgmentMismatchError: a judgment was given for other responses.
        """
        said = [vote for vote in standing(judgments) if vote.choice != "skip"]
        said.sort(key=lambda vote: vote.created_at or "")
        for vote in said:
            if vote.choice in ("a", "b") and vote.shown_order is not None:
                is_first = (vote.choice == "a") == (vote.shown_order == "AB")
                self.first += is_first
                self.second += not is_first
        self.human_pairs += any(vote.kind == "human" for vote in said)
        if len(said) > 1:
            self.units.append({v.annotator_id: oriented(v, comparison).choice for v in said})

    def first_wins(self) -> Share | None:
        """Share of the votes for the response shown first; one half without bias."""
        return share(self.first, self.first + self.second)


def votes_of(comparisons: Iterable[Comparison], judgments: Iterable[Judgment]) -> Votes:
    """The votes on all comparisons; judgments of other pairs are ignored.

    Raises:
        JudgmentMismatchError: a judgment was given for other responses.
    """
    said: dict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        said[judgment.pair_id].append(judgment)
    votes = Votes()
    for comparison in comparisons:
        votes.add(comparison, said[comparison.pair_id])
    return votes


Said = TypeVar("Said")


def first_votes(units: Iterable[Mapping[str, Said]]) -> list[dict[str, Said]]:
    """Of each pair with two votes or more, the first k that every such pair has.

    A further vote is asked for where the first ones differ, so that agreement over all votes is
    that of pairs in dispute above all, and agreement over pairs with the usual number of votes that
    of pairs which nobody disputed.
    """
    several = [unit for unit in units if len(unit) > 1]
    k = min(map(len, several), default=0)
    return [dict(islice(unit.items(), k)) for unit in several]


def krippendorff_alpha(units: Units) -> float | None:
    """Agreement beyond chance for nominal votes, any number per pair (Krippendorff 2011).

    One minus observed over expected disagreement, over pairs with two or more votes. None if there
    is nothing to compare, or if all votes are the same, so that chance and agreement coincide.
    """
    together: dict[tuple[str, str], float] = defaultdict(float)
    for unit in units:
        if len(unit) < 2:
            continue
        counts = Counter(unit.values())
        for one in counts:
            for other in counts:
                pairs = counts[one] * (counts[other] - (one == other))
                together[one, other] += pairs / (len(unit) - 1)
    totals: dict[str, float] = defaultdict(float)
    for (one, _), weight in together.items():
        totals[one] += weight
    n = sum(totals.values())
    expected = n * n - sum(total * total for total in totals.values())
    if n < 2 or not expected:
        return None
    observed = sum(weight for (one, other), weight in together.items() if one != other)
    return 1 - (n - 1) * observed / expected


def fleiss_kappa(units: Units) -> float | None:
    """Agreement beyond chance (Fleiss 1971), over pairs with the most common number of votes."""
    sizes = Counter(len(unit) for unit in units if len(unit) >= 2)
    if not sizes:
        return None
    size = max(sizes, key=lambda each: (sizes[each], each))
    tables = [Counter(unit.values()) for unit in units if len(unit) == size]
    agreements = [
        (sum(count * count for count in table.values()) - size) / (size * (size - 1))
        for table in tables
    ]
    shares = Counter[str]()
    for table in tables:
        shares.update(table)
    chance = sum((count / (size * len(tables))) ** 2 for count in shares.values())
    return None if chance == 1 else (sum(agreements) / len(tables) - chance) / (1 - chance)


def cohen_kappa(units: Units, one: str, other: str) -> float | None:
    """Agreement beyond chance of two annotators, on the pairs judged by both (Cohen 1960)."""
    both = [(unit[one], unit[other]) for unit in units if one in unit and other in unit]
    if not both:
        return None
    observed = sum(a == b for a, b in both) / len(both)
    left, right = Counter(a for a, _ in both), Counter(b for _, b in both)
    chance = sum(left[choice] * right[choice] for choice in left) / len(both) ** 2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def agreement_with_others(units: Units) -> dict[str, Share]:
    """Per annotator, how often they agree with the majority of the others, where there is one."""
    agreed, judged = Counter[str](), Counter[str]()
    for unit in units:
        for who, choice in unit.items():
            others = Counter(said for name, said in unit.items() if name != who).most_common(2)
            if others and (len(others) == 1 or others[0][1] > others[1][1]):
                judged[who] += 1
                agreed[who] += choice == others[0][0]
    return {who: found for who in sorted(judged) if (found := share(agreed[who], judged[who]))}


def weak_annotators(units: Units) -> list[str]:
    """Annotators who agree with the others less often than average.

    By exact binomial tests, as strict as the number of annotators asks for (Bonferroni): if all are
    equally good, one of them or more is named in at most 1 of 40 data sets.
    """
    per_annotator = agreement_with_others(units)
    n = sum(each.n for each in per_annotator.values())
    if not n:
        return []
    overall = sum(each.hits for each in per_annotator.values()) / n
    level = 0.025 / len(per_annotator)
    return [
        who for who, each in per_annotator.items() if _at_most(each.hits, each.n, overall) < level
    ]


def _at_most(hits: int, n: int, chance: float) -> float:
    """The probability of `hits` or fewer in `n` cases of the same chance each."""
    if hits >= n:
        return 1.0
    if chance in (0.0, 1.0):
        return 1.0 - chance
    ways = [lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) for k in range(hits + 1)]
    return fsum(
        exp(way + k * log(chance) + (n - k) * log(1 - chance)) for k, way in enumerate(ways)
    )
