"""Pairs whose responses say what they are worth."""

from dataclasses import replace

from feedback.judgments import Pair
from preferences.records import pair_id


def pairs_with(difference: float, count: int, key: str = "r1") -> list[Pair]:
    rows = [(f"prompt {n}", f"gold={difference + 5} a{n}", f"gold=5 b{n}") for n in range(count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round=key, prompt=p, response_a=a, response_b=b)
        for p, a, b in rows
    ]


def swapped(pair: Pair) -> Pair:
    return replace(pair, response_a=pair.response_b, response_b=pair.response_a)
