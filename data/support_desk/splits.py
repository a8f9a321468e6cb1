"""Which prompts are for training, which are held out and which are for the one final test.

Everything in a prompt belongs to its split: the template, the product (adjective and noun), the
customer with the order number and the customer with the city. A hash of a combination's words
decides its split, independently of seed, sample size and order of calls. Single words occur in all
splits, combinations and templates in only one.
"""

import hashlib
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Literal

from data.support_desk.intents import INTENTS, REQUIRED_SLOTS, SPLITS, Intent, Split
from data.support_desk.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, ORDERS
from data.support_desk.requests import Request, build_request
from data.support_desk.templates import CLOSERS, GREETINGS, Template, Templates

Combination = Literal["product", "name_order", "name_city"]

# Percentages of the combinations: 70 for training, 15 held out, 15 for the test.
_TRAIN_BELOW = 70
_HELDOUT_BELOW = 85
# Hashed together with the words. The numbers were searched for even shares: every word occurs in
# every split, with about as many training combinations as the others of its class.
_SALTS: Mapping[Combination, str] = {
    "product": "product-2398",
    "name_order": "name_order-895",
    "name_city": "name_city-2490",
}


class TooManyRequestsError(ValueError):
    """More unique prompts were requested than the split has."""

    def __init__(self, split: Split, asked: int, available: int) -> None:
        """Names the split and both numbers."""
        super().__init__(
            f"split {split!r}: {asked} unique prompts requested, but only {available} exist"
        )
        self.split = split
        self.asked = asked
        self.available = available


def _hashed_split(kind: Combination, first: str, second: str) -> Split:
    digest = hashlib.sha256(f"{_SALTS[kind]}:{first}|{second}".encode()).digest()
    percent = int.from_bytes(digest[:8], "big") % 100
    if percent < _TRAIN_BELOW:
        return "train"
    return "heldout" if percent < _HELDOUT_BELOW else "test"


def _table(
    kind: Combination, firsts: Iterable[str], seconds: Iterable[str]
) -> Mapping[tuple[str, str], Split]:
    pairs = itertools.product(firsts, seconds)
    return {(first, second): _hashed_split(kind, first, second) for first, second in pairs}


SPLIT_OF: Mapping[Combination, Mapping[tuple[str, str], Split]] = {
    "product": _table("product", ADJECTIVES, NOUNS),
    "name_order": _table("name_order", NAMES, ORDERS),
    "name_city": _table("name_city", NAMES, CITIES),
}


def _partners(kind: Combination, split: Split) -> Mapping[str, tuple[str, ...]]:
    """For each first word, the second words that combine with it in the split."""
    table = SPLIT_OF[kind]
    firsts = dict.fromkeys(first for first, _ in table)
    return {
        first: tuple(b for (a, b), owner in table.items() if a == first and owner == split)
        for first in firsts
    }


PRODUCTS: Mapping[Split, tuple[tuple[str, str], ...]] = {
    split: tuple(pair for pair, owner in SPLIT_OF["product"].items() if owner == split)
    for split in SPLITS
}
ORDERS_OF: Mapping[Split, Mapping[str, tuple[str, ...]]] = {
    split: _partners("name_order", split) for split in SPLITS
}
CITIES_OF: Mapping[Split, Mapping[str, tuple[str, ...]]] = {
    split: _partners("name_city", split) for split in SPLITS
}


def _combinations(split: Split, intent: Intent, name: str) -> int:
    """The number of sets of slot words that a customer of this name can use."""
    slots = REQUIRED_SLOTS[intent]
    count = len(NAMES) - 1 if intent == "privacy" else 1
    count *= len(PRODUCTS[split]) if "product" in slots else 1
    count *= len(ORDERS_OF[split][name]) if "order" in slots else 1
    return count * (len(CITIES_OF[split][name]) if "city" in slots else 1)


def capacity(split: Split, *, templates: Templates) -> int:
    """The number of different prompt texts in a split, if its requests use these templates."""
    return sum(
        len(templates[split, intent])
        * len(GREETINGS)
        * len(CLOSERS)
        * sum(_combinations(split, intent, name) for name in NAMES)
        for intent in INTENTS
    )


_CUSTOMERS: Mapping[tuple[Split, Intent], tuple[str, ...]] = {
    (split, intent): tuple(name for name in NAMES if _combinations(split, intent, name))
    for split in SPLITS
    for intent in INTENTS
}


def _draw_slots(split: Split, template: Template, name: str, rng: random.Random) -> dict[str, str]:
    required = REQUIRED_SLOTS[template.intent]
    slots: dict[str, str] = {}
    if "product" in required:
        slots["adjective"], slots["noun"] = rng.choice(PRODUCTS[split])
    if "order" in required:
        slots["order"] = rng.choice(ORDERS_OF[split][name])
    if "city" in required:
        slots["city"] = rng.choice(CITIES_OF[split][name])
    if template.intent == "privacy":
        slots["name"] = rng.choice([other for other in NAMES if other != name])
    return slots


def draw_request(split: Split, rng: random.Random, *, templates: Templates) -> Request:
    """Draws one request of a split: uniform over intents, templates, greetings and closers."""
    intent = rng.choice(INTENTS)
    template = rng.choice(templates[split, intent])
    name = rng.choice(_CUSTOMERS[split, intent])
    slots = _draw_slots(split, template, name, rng)
    greeting, closer = rng.choice(GREETINGS), rng.choice(CLOSERS)
    return build_request(template, greeting, closer, name=name, slots=slots)


def sample_requests(
    split: Split, count: int, rng: random.Random, *, templates: Templates
) -> list[Request]:
    """Draws requests of a split, all with different texts.

    With the same seed, a longer sample starts with the shorter one.

    Args:
        split: The split whose templates and combinations to use.
        count: How many requests.
        rng: Source of all randomness.
        templates: What to draw from, for every split; see ``select_templates``.

    Raises:
        TooManyRequestsError: The split has fewer than ``count`` different texts.
    """
    if count > (available := capacity(split, templates=templates)):
        raise TooManyRequestsError(split, count, available)
    drawn: dict[str, Request] = {}
    while len(drawn) < count:
        request = draw_request(split, rng, templates=templates)
        drawn.setdefault(request.text, request)
    return list(drawn.values())
