"""Plain-text documents for language-model pre-training.

The last thing a small model learns, and abruptly, is to copy words from a prompt into a response.
So most documents repeat the same slot words after the same words ("order 39", "in Oslo"): a card
states a customer's facts three times, a note summarises a request twice, a dialogue replies in the
customer's words. A check compares a draft with its request, which a reward model also has to do.
All combinations and templates are those of the training split.
"""

import random
from collections.abc import Callable, Mapping

from data.support_desk.intents import INTENTS, REQUIRED_SLOTS
from data.support_desk.lexicon import NAMES
from data.support_desk.requests import Request
from data.support_desk.responses import SENTENCES, Sentence
from data.support_desk.splits import CITIES_OF, ORDERS_OF, PRODUCTS, SPLIT_OF, draw_request
from data.support_desk.templates import Templates

# Share of each kind of document.
KINDS: Mapping[str, float] = {
    "card": 0.3,
    "note": 0.25,
    "dialogue": 0.25,
    "check": 0.15,
    "text": 0.05,
}

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
    """The request's words, and training words for the classes it lacks."""
    words = _persona(rng)
    words["name"] = request.name
    words["order"] = request.order or rng.choice(ORDERS_OF["train"][request.name])
    words["city"] = request.city or rng.choice(CITIES_OF["train"][request.name])
    words["adjective"], words["noun"] = request.product or (words["adjective"], words["noun"])
    return words


def _fill(sentence: Sentence, words: Mapping[str, str]) -> str:
    return sentence.text.format_map(words)


def _facts(words: Mapping[str, str]) -> list[str]:
    """The known facts about a customer, phrased as in responses."""
    facts = [f"from {words['name']}"]
    if "order" in words:
        facts.append(f"order {words['order']}")
    if "city" in words:
        facts.append(f"in {words['city']}")
    if "noun" in words:
        facts.append(f"the {words['adjective']} {words['noun']}")
    return facts


def _said(facts: list[str], times: int, rng: random.Random) -> str:
    """The facts, in a different order each time."""
    return " ".join(" ".join(rng.sample(facts, len(facts))) for _ in range(times))


def _card(rng: random.Random) -> str:
    return f"Card: {_said(_facts(_persona(rng)), 3, rng)}."


def _note(request: Request, rng: random.Random) -> str:
    """A request and a clerk's note of all its slots."""
    note = _said(_facts(_asked(request)), 2, rng)
    return f"Customer: {request.text} Note: {request.intent}, {note}."


def _dialogue(request: Request, rng: random.Random) -> str:
    words = _words_of(request, rng)
    sentences = (
        rng.choice(_POLITE_OPENINGS),
        rng.choice(_FULL[request.intent]),
        rng.choice(_CLOSINGS),
    )
    response = " ".join(_fill(sentence, words) for sentence in sentences)
    return f"Customer: {request.text} Answer: {response}"


def _check(request: Request, rng: random.Random) -> str:
    """A draft, possibly with wrong words or for another request, and a clerk's check of it.

    The clerk compares words and topics but does not say what makes a response good.
    """
    asked = _asked(request)
    said = _mistaken(_words_of(request, rng), rng)
    # With a second name, only responses without slots, which form no combination with it.
    intents = [other for other in INTENTS if request.other is None or not REQUIRED_SLOTS[other]]
    intent = request.intent if rng.random() < 0.7 else rng.choice(intents)
    opening, content = rng.choice(_POLITE_OPENINGS), rng.choice(_FULL[intent])
    used = {"name", *content.classes} if opening.classes else set(content.classes)
    verdicts = [("Topic", intent == request.intent)]
    verdicts += [
        (label, all(asked.get(kind) == said[kind] for kind in kinds))
        for label, kinds in _CHECKED
        if used >= set(kinds)
    ]
    rng.shuffle(verdicts)
    check = " ".join(f"{label}: {'right' if fits else 'wrong'}." for label, fits in verdicts)
    draft = f"{_fill(opening, said)} {_fill(content, said)}"
    return f"Customer: {request.text} Draft: {draft} Check: {check}"


def _asked(request: Request) -> dict[str, str]:
    """The slot words in the request."""
    words = {"name": request.name}
    if request.order is not None:
        words["order"] = request.order
    if request.city is not None:
        words["city"] = request.city
    if request.product is not None:
        words["adjective"], words["noun"] = request.product
    return words


_CHECKED = (
    ("Name", ("name",)),
    ("Order", ("order",)),
    ("City", ("city",)),
    ("Product", ("adjective", "noun")),
)


def _mistaken(words: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    """The words with every fifth slot replaced; all pairs are training combinations."""
    name, said = words["name"], dict(words)
    if rng.random() < 0.2:
        said["order"] = rng.choice(ORDERS_OF["train"][name])
    if rng.random() < 0.2:
        said["city"] = rng.choice(CITIES_OF["train"][name])
    if rng.random() < 0.2:
        said["adjective"], said["noun"] = rng.choice(PRODUCTS["train"])
    if rng.random() < 0.2:
        said["name"] = rng.choice(_namesakes(words, said))
    return said


def _namesakes(words: Mapping[str, str], said: Mapping[str, str]) -> list[str]:
    """Names that make training combinations with all orders and cities of either side."""
    return [
        name
        for name in NAMES
        if all(
            SPLIT_OF["name_order"][name, side["order"]] == "train"
            and SPLIT_OF["name_city"][name, side["city"]] == "train"
            for side in (words, said)
        )
    ]


def _text(rng: random.Random) -> str:
    """Sentences from responses about one customer, in random order."""
    words = _persona(rng)
    chosen = [*rng.sample(_EVERYTHING, 4), rng.choice(_OTHERS)]
    rng.shuffle(chosen)
    return " ".join(_fill(sentence, words) for sentence in chosen)


_OF_A_CUSTOMER: Mapping[str, Callable[[random.Random], str]] = {"card": _card, "text": _text}
_OF_A_REQUEST: Mapping[str, Callable[[Request, random.Random], str]] = {
    "note": _note,
    "dialogue": _dialogue,
    "check": _check,
}


def sample_document(rng: random.Random, *, templates: Templates) -> str:
    """Draws one document: about 15 to 60 words of plain text on one line."""
    kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    if kind in _OF_A_CUSTOMER:
        return _OF_A_CUSTOMER[kind](rng)
    return _OF_A_REQUEST[kind](draw_request("train", rng, templates=templates), rng)
