"""The slot words of the support desk, and the shape of a text without them.

A slot word belongs to exactly one class and occurs nowhere else: no template uses "red" or "Clara"
as an ordinary word. Each is spelt in one way only (same capitals, no attached letters), so that a
byte-level BPE with a prefix space can encode it as one token.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

NAMES = (
    *("Adam", "Anna", "Boris", "Bruno", "Clara", "Daniel", "Emma", "Felix", "Greta", "Hugo"),
    *("Ines", "Jonas", "Karin", "Leo", "Lydia", "Maria", "Marta", "Nina", "Oliver", "Paula"),
    *("Quentin", "Rosa", "Simon", "Tessa", "Ulla", "Vera", "Walter", "Xenia", "Yusuf", "Zara"),
)
CITIES = (
    *("Athens", "Berlin", "Cairo", "Dublin", "Geneva", "Hamburg", "Istanbul", "Jakarta", "Kyoto"),
    *("Lisbon", "Naples", "Oslo", "Prague", "Quito", "Riga", "Seoul", "Toronto", "Utrecht"),
    *("Warsaw", "Zagreb", "Bogota", "Boston", "Delhi", "Denver", "Havana", "Helsinki", "Lagos"),
    *("Lima", "London", "Madrid", "Manila", "Milan", "Munich", "Nairobi", "Paris", "Perth"),
)
ADJECTIVES = (
    *("red", "blue", "green", "yellow", "white", "black"),
    *("wooden", "golden", "silver", "leather", "cotton", "glass"),
    *("brown", "grey", "pink", "purple", "copper", "marble"),
    *("bamboo", "velvet", "plastic", "striped", "folding", "antique"),
)
NOUNS = (
    *("lamp", "chair", "table", "sofa", "rug", "vase", "mirror", "clock"),
    *("kettle", "shelf", "pillow", "blanket", "basket", "tray", "stool", "candle"),
    *("desk", "bench", "bowl", "plate", "cup", "jar", "bucket", "ladder"),
    *("curtain", "cushion", "drawer", "hammock", "carpet", "teapot", "wardrobe", "lantern"),
)
ORDERS = tuple(str(number) for number in range(10, 100))

SLOT_CLASSES: Mapping[str, tuple[str, ...]] = {
    "name": NAMES,
    "order": ORDERS,
    "city": CITIES,
    "adjective": ADJECTIVES,
    "noun": NOUNS,
}
CLASS_OF: Mapping[str, str] = {word: kind for kind, words in SLOT_CLASSES.items() for word in words}

_PLACEHOLDER: Mapping[str, str] = {word: f"{{{kind}}}" for word, kind in CLASS_OF.items()}
_WORD = re.compile(r"[A-Za-z]+|[0-9]+")


class Shape(NamedTuple):
    """A text with its slot words removed.

    Attributes:
        skeleton: The text with each slot word replaced by its class in braces, e.g. ``{name}``.
        words: The slot words in the order of the text.
    """

    skeleton: str
    words: tuple[str, ...]


def shape_of(text: str) -> Shape:
    """Removes the slot words from a text; filling ``skeleton`` with them gives the text back."""
    words: list[str] = []

    def take(match: re.Match[str]) -> str:
        placeholder = _PLACEHOLDER.get(match[0])
        if placeholder is None:
            return match[0]
        words.append(match[0])
        return placeholder

    return Shape(_WORD.sub(take, text), tuple(words))
