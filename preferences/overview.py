"""Statistics of the data as a whole, and whether they are within their bounds."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from preferences.drift import Distance, ks_distance, share_distance
from preferences.grouped_shares import grouped_share
from preferences.languages import LANGUAGES
from preferences.measures import Measured
from preferences.params import Bound, Bounds
from preferences.schemas import shown
from preferences.statistics import (
    Share,
    Units,
    Votes,
    first_votes,
    krippendorff_alpha,
    share,
    weak_annotators,
)

REASONS: Mapping[str, str] = {
    "longer_wins": "share of fresh pairs whose longer response was chosen",
    "first_wins": "deviation from one half of the share of votes for the response shown first",
    "agreement": "Krippendorff's alpha between the annotators",
    "weak_annotators": "annotators who agree with the others less often than average",
    "length_drift": "drift of response lengths since earlier rounds",
    "score_drift": "drift of the margins since earlier rounds",
    "prompt_drift": "largest change since earlier rounds in the share of prompts with any one word",
    "language_drift": "largest change since earlier rounds in the share of any one language",
}
"""What each number means, for people."""
AT_LEAST = frozenset({"agreement"})
"""Numbers that should be high; all others should be low."""
_DRAWS = 1_000
"""Draws of a bootstrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number about the data, with its bound."""

    name: str
    value: float
    near: float
    """The end of its interval nearer to the bound, which is what is compared."""
    n: int
    """Number of cases behind it."""
    bound: Bound
    names: tuple[str, ...] = ()
    """The people concerned: the weak annotators."""

    @property
    def kept(self) -> bool:
        """Whether it is within its bound."""
        if self.name in AT_LEAST:
            return self.near >= self.bound.limit
        return self.near <= self.bound.limit

    def to_json(self) -> dict[str, Any]:
        """For verdict.json."""
        row = {"value": self.value, "near_end": self.near, "n": self.n, "kept": self.kept}
        return {**asdict(self.bound), **row, **({"names": list(self.names)} if self.names else {})}

    def sentence(self) -> str:
        """The number and its bound in words, with the names, which come from the data."""
        return self.without_names() + (
            f": {', '.join(map(shown, self.names))}" if self.names else ""
        )

    def without_names(self) -> str:
        """The number and its bound in words."""
        side = "at least" if self.name in AT_LEAST else "at most"
        end = "at most, by chance" if self.name in AT_LEAST else "beyond chance"
        near = "" if self.near == self.value else f" ({self.near:.3f} {end})"
        return f"{REASONS[self.name]} is {self.value:.3f}{near}, {side} {self.bound.limit:g}"


def numbers_of(
    measured: Measured, votes: Votes, bounds: Bounds, *, unlabelled: bool = False
) -> list[Number]:
    """All numbers that the data define and that are not off, in the order of `Bounds`.

    What is asked of fresh pairs is asked of all where nobody labels: there are no fresh ones.
    """
    table = measured.table
    fresh = table["fresh"].to_numpy(dtype=np.bool_)
    given = {
        **_biases(table if unlabelled else table[fresh], votes),
        **_agreement(votes),
        **_drifts(measured, fresh),
    }
    weak = tuple(weak_annotators(votes.units))
    return [
        Number(
            name=name,
            value=given[name][0],
            near=given[name][1],
            n=given[name][2],
            bound=bound,
            names=weak if name == "weak_annotators" else (),
        )
        for name, bound in _fields(bounds)
        if bound.severity != "off" and name in given
    ]


def _fields(bounds: Bounds) -> Iterator[tuple[str, Bound]]:
    for name in REASONS:
        yield name, getattr(bounds, name)


_Given = dict[str, tuple[float, float, int]]
"""Name -> value, the end of its interval nearer to the bound, number of cases."""


def _biases(fresh: pd.DataFrame, votes: Votes) -> _Given:
    found: _Given = {}
    if longer := longer_share(fresh):
        found["longer_wins"] = (longer.mean, longer.low, longer.n)
    if first := votes.first_wins():
        beyond = max(0.0, first.low - 0.5, 0.5 - first.high)
        found["first_wins"] = (abs(first.mean - 0.5), beyond, first.n)
    return found


def longer_share(table: pd.DataFrame) -> Share | None:
    """How often the longer response was chosen; ties and equal lengths are left out."""
    decided = table[~table["tie"]]
    more = (decided["chosen_characters"] - decided["rejected_characters"]).to_numpy()
    unequal = more != 0
    prompts = decided["prompt"].to_numpy(dtype=np.int64)
    return grouped_share((more > 0)[unequal].astype(np.float64), prompts[unequal])


def _agreement(votes: Votes) -> _Given:
    first = first_votes(votes.units)
    alpha, several = krippendorff_alpha(first), len(first)
    if alpha is None:
        return {}
    weak = float(len(weak_annotators(votes.units)))
    high = max(alpha, _highest_alpha(first), _alpha_if_agreed(first, alpha))
    return {"agreement": (alpha, high, several), "weak_annotators": (weak, weak, several)}


def _highest_alpha(units: Units) -> float:
    """The high end of the 95 % interval of Krippendorff's alpha: a bootstrap over pairs.

    Pairs with the same votes are drawn together, so the cost does not grow with their number.
    """
    choices = sorted({choice for unit in units for choice in unit.values()})
    said = [[list(unit.values()).count(choice) for choice in choices] for unit in units]
    kinds, pairs = np.unique(np.array(said), axis=0, return_counts=True)
    votes = kinds.sum(axis=1)
    apart = (votes**2 - (kinds**2).sum(axis=1)) / (votes - 1)
    drawn = np.random.default_rng(0).multinomial(len(units), pairs / len(units), size=_DRAWS)
    n = drawn @ votes
    expected = n**2 - ((drawn @ kinds) ** 2).sum(axis=1)
    # A draw whose votes are all the same has no disagreement at all.
    alphas = 1 - (n - 1) * (drawn @ apart) / np.maximum(expected, 1)
    return float(np.quantile(alphas, 0.975))


def _alpha_if_agreed(units: Units, alpha: float) -> float:
    """What alpha would be if people agreed as often as the high end of Wilson's interval has it.

    Of a few pairs a bootstrap says too little: one pair has the same alpha in every draw.
    """
    same = [
        statistics.fmean(one == other for one, other in combinations(unit.values(), 2))
        for unit in units
    ]
    agreed = share(math.fsum(same), len(same))
    if agreed is None or agreed.mean == 1:
        return alpha
    return 1 - (1 - alpha) * (1 - agreed.high) / (1 - agreed.mean)


def _drifts(measured: Measured, fresh: NDArray[np.bool_]) -> _Given:
    table, words = measured.table, measured.prompt_words
    margins = table["margin"].to_numpy(dtype=np.float64)
    lengths = (table["chosen_characters"] + table["rejected_characters"]).to_numpy(dtype=np.float64)
    spoken = [
        np.bincount(table["language"][rows].to_numpy(), minlength=len(LANGUAGES))
        for rows in (fresh, ~fresh)
    ]
    distances: dict[str, Distance | None] = {
        "length_drift": ks_distance(lengths[fresh], lengths[~fresh]),
        "score_drift": ks_distance(margins[fresh], margins[~fresh]),
        "prompt_drift": share_distance(
            words.counts[1], words.prompts(fresh=True), words.counts[0], words.prompts(fresh=False)
        ),
        "language_drift": share_distance(
            spoken[0], int(fresh.sum()), spoken[1], int((~fresh).sum())
        ),
    }
    return {name: (d.value, d.low, d.n) for name, d in distances.items() if d is not None}


def beyond(numbers: Sequence[Number]) -> list[Number]:
    """The numbers outside their bounds."""
    return [number for number in numbers if not number.kept]
