"""Which pairs are taken where responses would form too many, and how many votes one may have.

A row of 3,000 ranked responses has 4.5 million pairs, and no reward model learns anything from the
last four million of them. The sample depends on the prompt alone, so it is the same in every run.
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import isqrt
from random import Random
from typing import TypeVar

from preferences.opening import Limits
from preferences.row_values import RowError

T = TypeVar("T")


def pairs_within(items: Sequence[T], most: int, key: str) -> tuple[list[tuple[T, T]], int]:
    """Pairs of two of the items, at most `most`, and the number of those left out."""
    total = len(items) * (len(items) - 1) // 2
    if total <= most:
        return list(combinations(items, 2)), 0
    places = [_two(number) for number in _some(total, most, key)]
    return [(items[one], items[other]) for one, other in places], total - most


def pairs_across(
    ones: Sequence[T], others: Sequence[T], most: int, key: str
) -> tuple[list[tuple[T, T]], int]:
    """Pairs of one item of each, at most `most`, and the number of those left out."""
    total = len(ones) * len(others)
    if total <= most:
        return list(product(ones, others)), 0
    places = [divmod(number, len(others)) for number in _some(total, most, key)]
    return [(ones[one], others[other]) for one, other in places], total - most


def check_votes(count: int, limits: Limits) -> None:
    """Refuses more votes on one pair than people cast.

    Raises:
        RowError: there are too many.
    """
    if count > limits.votes_of_pair:
        raise RowError(
            f"found {count:,} votes on one pair, expected at most {limits.votes_of_pair:,}"
        )


def _some(total: int, most: int, key: str) -> list[int]:
    return sorted(Random(key).sample(range(total), most))


def _two(number: int) -> tuple[int, int]:
    """The number-th of the pairs (0, 1), (0, 2), (1, 2), (0, 3), ..."""
    other = (1 + isqrt(1 + 8 * number)) // 2
    return number - other * (other - 1) // 2, other
