"""A pair, a judgment of it, and the comparison that the pair comes from."""

from typing import Any

from feedback.judgments import Pair
from preferences.records import Judgment, pair_id


def a_pair(a: str = "Hello Ana.", b: str = "Go away.", key: str = "r1") -> Pair:
    return Pair(
        pair_id=pair_id("Hi, this is Ana.", a, b),
        round=key,
        prompt="Hi, this is Ana.",
        response_a=a,
        response_b=b,
    )


def a_judgment(pair: Pair, **changes: Any) -> Judgment:
    content: dict[str, Any] = {
        "annotator_id": "ana",
        "kind": "human",
        "annotator_version": "v1",
        "choice": "a",
        "strength": 3,
        "shown_order": "AB",
    }
    return Judgment.of(pair, **(content | changes))


def comparison_of(pair: Pair, **more: Any) -> dict[str, Any]:
    names = ("pair_id", "round", "prompt", "response_a", "response_b")
    return {name: getattr(pair, name) for name in names} | more
