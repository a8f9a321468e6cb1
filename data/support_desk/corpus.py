"""Plain-text documents for language-model pre-training.

Most documents say the same slot words twice: a dialogue answers with the customer's words, a note
sums a request up, a list is said again. Copying words from a prompt into an answer is what a small
model learns last, so every document practises it. All combinations and templates are those of the
training split.
"""

import random
from collections.abc import Mapping

from data.support_desk.answers import SENTENCES, Sentence
from data.support_desk.lexicon import ADJECTIVES, CITIES, NAMES, NOUNS, ORDERS
from data.support_desk.requests import Request
from data.support_desk.splits import CITIES_OF, ORDERS_OF, PRODUCTS, SPLIT_OF, draw_request
from data.support_desk.templates import INTENTS

# Shares of the kinds of documents.
KINDS: Mapping[str, float] = {"list": 0.2, "card": 0.1, "note": 0.25, "dialogue": 0.35, "text": 0.1}

# What lists are made of; the empty one stands for a mixture. Large classes need more practice.
_LISTED: tuple[tuple[str, ...], ...] = (ORDERS, NAMES, CITIES, ADJECTIVES, NOUNS, ())
_LIST_WEIGHTS = (5, 2, 1, 1, 1, 2)

_FULL = {
    intent: tuple(s for s in SENTENCES.values() if s.intent == intent and s.full)
    for intent in INTENTS
}
_POLITE_OPENINGS = tuple(
    s for s in SENTENCES.values() if s.kind == "opening" and s.tone == "polite" and s.classes
)
_CLOSINGS = tuple(s for s in SENTENCES.values() if s.kind == "closing" and s.tone != "rude")
_OTHERS = tuple(s for s in SENTENCES.values() if s.kind in ("opening", "closing", "fluff", "leak"))
_EVERYTHING = tuple(SENTENCES.values())


def _persona(rng: random.Random) -> dict[str, str]:
    """One word of each class, all of them training combinations with each other."""
    name = rng.choice(NAMES)
    adjective, noun = rng.choice(PRODUCTS["train"])
    return {
        "name": name,
        "order": rng.choice(ORDERS_OF["train"][name]),
        "city": rng.choice(CITIES_OF["train"][name]),
        "adjective": adjective,
        "noun": noun,
    }


def _words_of(request: Request, rng: random.Random) -> dict[str, str]:
    """The request's words, and training words for the classes that it lacks."""
    words = _persona(rng)
    words["name"] = request.name
    words["order"] = request.order or rng.choice(ORDERS_OF["train"][request.name])
    words["city"] = request.city or rng.choice(CITIES_OF["train"][request.name])
    words["adjective"], words["noun"] = request.product or (words["adjective"], words["noun"])
    return words


def _fill(sentence: Sentence, words: Mapping[str, str]) -> str:
    return sentence.text.format_map(words)


def _list(rng: random.Random) -> str:
    """Words of one class, or of all classes mixed, said twice."""
    words = rng.choices(_LISTED, _LIST_WEIGHTS)[0]
    items = rng.sample(words, rng.randint(3, 8)) if words else _mixed_items(rng)
    said = ", ".join(items)
    return f"List: {said}. Again: {said}."


def _mixed_items(rng: random.Random) -> list[str]:
    """Names, orders and cities of which all pairs are training combinations, and one product."""
    persona = _persona(rng)
    product = f"{persona['adjective']} {persona['noun']}"
    items = [persona["name"], persona["order"], persona["city"], product]
    for _ in range(4):
        name = rng.choice(NAMES)
        orders = [item for item in items if item in ORDERS]
        cities = [item for item in items if item in CITIES]
        fits = all(SPLIT_OF["name_order"][name, order] == "train" for order in orders) and all(
            SPLIT_OF["name_city"][name, city] == "train" for city in cities
        )
        if fits and name not in items:
            items.append(name)
    rng.shuffle(items)
    return items


def _card(rng: random.Random) -> str:
    words = _persona(rng)
    lines = [
        ("Name", words["name"]),
        ("Order", words["order"]),
        ("City", words["city"]),
        ("Product", f"{words['adjective']} {words['noun']}"),
    ]
    rng.shuffle(lines)
    card = " ".join(f"{label}: {value}." for label, value in lines)
    rng.shuffle(lines)
    again = " ".join(f"{label}: {value}." for label, value in lines)
    return f"{card} Again: {again}"


def _note(rng: random.Random) -> str:
    """A request and a clerk's note of every slot in it."""
    request = draw_request("train", rng)
    facts = [("Name", request.name)]
    if request.order:
        facts.append(("Order", request.order))
    if request.city:
        facts.append(("City", request.city))
    if request.product:
        facts.append(("Product", " ".join(request.product)))
    rng.shuffle(facts)
    note = " ".join(f"{label}: {value}." for label, value in facts)
    return f"{request.text} Note: {request.intent}. {note}"


def _dialogue(rng: random.Random) -> str:
    request = draw_request("train", rng)
    words = _words_of(request, rng)
    sentences = (
        rng.choice(_POLITE_OPENINGS),
        rng.choice(_FULL[request.intent]),
        rng.choice(_CLOSINGS),
    )
    answer = " ".join(_fill(sentence, words) for sentence in sentences)
    return f"Customer: {request.text} Answer: {answer}"


def _text(rng: random.Random) -> str:
    """Sentences of answers about one customer, in no order."""
    words = _persona(rng)
    chosen = [*rng.sample(_EVERYTHING, 4), rng.choice(_OTHERS)]
    rng.shuffle(chosen)
    return " ".join(_fill(sentence, words) for sentence in chosen)


_WRITE = {"list": _list, "card": _card, "note": _note, "dialogue": _dialogue, "text": _text}


def sample_document(rng: random.Random) -> str:
    """Draws one document, 10 to 60 words of plain text in one line."""
    kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    return _WRITE[kind](rng)
