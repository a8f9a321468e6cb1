"""Four simulated writers whose responses are the demonstrations, and the ideal response.

The writers differ as people do: the careful one rarely forgets anything, the hurried one omits
politeness and details, the grumpy one is rude and sometimes answers the wrong question, and the
chatty one adds small talk and mixes up details. Supervised fine-tuning imitates their mixture,
which leaves something to learn from preferences.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data.support_desk.intents import INTENTS, Intent, Slot
from data.support_desk.requests import Request
from data.support_desk.responses import SENTENCES, Kind, Sentence, Tone
from data.support_desk.splits import CITIES_OF, ORDERS_OF, PRODUCTS

# Share of the demonstrations written by each writer.
WRITERS: Mapping[str, float] = {"careful": 0.25, "hurried": 0.30, "grumpy": 0.20, "chatty": 0.25}


class UnknownWriterError(ValueError):
    """There is no writer of this name."""

    def __init__(self, writer: str) -> None:
        """Names the writer and those that exist."""
        super().__init__(f"unknown writer {writer!r}, expected one of {', '.join(WRITERS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Habits:
    """One writer's habits; every number is a probability.

    Attributes:
        openings: Weights of a polite, a plain, a rude and no opening.
        named: Of greeting by name, where the opening allows it.
        full: Of repeating everything required; otherwise something is omitted.
        wrong_slot: For each slot, of replacing its word with another.
        wrong_intent: Of answering a different request.
        leak: Of revealing a private detail when asked for one.
        fluff: Weights of 0, 1 and 2 sentences of small talk before the content.
        closings: Weights of a polite, a plain, a rude and no closing.
    """

    openings: tuple[float, float, float, float]
    named: float
    full: float
    wrong_slot: float
    wrong_intent: float
    leak: float
    fluff: tuple[float, float, float]
    closings: tuple[float, float, float, float]


_HABITS: Mapping[str, _Habits] = {
    "careful": _Habits(
        openings=(0.84, 0.12, 0.0, 0.04),
        named=0.85,
        full=0.8,
        wrong_slot=0.06,
        wrong_intent=0.06,
        leak=0.0,
        fluff=(0.95, 0.05, 0.0),
        closings=(0.8, 0.12, 0.0, 0.08),
    ),
    "hurried": _Habits(
        openings=(0.05, 0.55, 0.05, 0.35),
        named=0.3,
        full=0.3,
        wrong_slot=0.1,
        wrong_intent=0.12,
        leak=0.2,
        fluff=(1.0, 0.0, 0.0),
        closings=(0.05, 0.45, 0.1, 0.4),
    ),
    "grumpy": _Habits(
        openings=(0.05, 0.3, 0.55, 0.1),
        named=0.5,
        full=0.55,
        wrong_slot=0.12,
        wrong_intent=0.22,
        leak=0.3,
        fluff=(0.95, 0.05, 0.0),
        closings=(0.05, 0.2, 0.65, 0.1),
    ),
    "chatty": _Habits(
        openings=(0.7, 0.3, 0.0, 0.0),
        named=0.7,
        full=0.6,
        wrong_slot=0.4,
        wrong_intent=0.18,
        leak=0.3,
        fluff=(0.05, 0.35, 0.6),
        closings=(0.75, 0.15, 0.0, 0.1),
    ),
}

_TONES: Sequence[Tone | None] = ("polite", "plain", "rude", None)


def _by_tone(kind: Kind, *, named: bool) -> Mapping[Tone, tuple[Sentence, ...]]:
    tones: tuple[Tone, ...] = ("polite", "plain", "rude")
    return {
        tone: tuple(
            sentence
            for sentence in SENTENCES.values()
            if sentence.kind == kind
            and sentence.tone == tone
            and ("name" in sentence.classes) == named
        )
        for tone in tones
    }


_NAMED_OPENINGS = _by_tone("opening", named=True)
_OPENINGS = _by_tone("opening", named=False)
_CLOSINGS = _by_tone("closing", named=False)
_CONTENT: Mapping[tuple[Intent, bool], tuple[Sentence, ...]] = {
    (intent, full): tuple(
        sentence
        for sentence in SENTENCES.values()
        if sentence.intent == intent and sentence.full == full
    )
    for intent in INTENTS
    for full in (True, False)
}
_LEAKS = tuple(sentence for sentence in SENTENCES.values() if sentence.kind == "leak")
_FLUFF = tuple(sentence for sentence in SENTENCES.values() if sentence.kind == "fluff")


def sample_writer(rng: random.Random) -> str:
    """Draws a writer according to the shares in `WRITERS`."""
    return rng.choices(tuple(WRITERS), tuple(WRITERS.values()))[0]


def _slots_of(request: Request) -> frozenset[Slot]:
    present: dict[Slot, object] = {
        "product": request.product,
        "order": request.order,
        "city": request.city,
    }
    return frozenset(slot for slot, value in present.items() if value is not None)


def _words(request: Request) -> dict[str, str]:
    adjective, noun = request.product or ("", "")
    words = {
        "name": request.name,
        "order": request.order or "",
        "city": request.city or "",
        "adjective": adjective,
        "noun": noun,
    }
    return {kind: word for kind, word in words.items() if word}


def _mixed_up(request: Request, chance: float, rng: random.Random) -> dict[str, str]:
    """The request's words, each slot replaced with the given chance.

    Wrong words form training combinations with the customer's name and with each other, so that
    no demonstration reveals a held-out combination.
    """
    words = _words(request)
    if request.order is not None and rng.random() < chance:
        words["order"] = rng.choice(ORDERS_OF["train"][request.name])
    if request.city is not None and rng.random() < chance:
        words["city"] = rng.choice(CITIES_OF["train"][request.name])
    if request.product is not None and rng.random() < chance:
        words["adjective"], words["noun"] = rng.choice(PRODUCTS["train"])
    return words


def _opening(habits: _Habits, rng: random.Random) -> Sentence | None:
    tone = rng.choices(_TONES, habits.openings)[0]
    if tone is None:
        return None
    named = _NAMED_OPENINGS[tone] if rng.random() < habits.named else ()
    return rng.choice(named or _OPENINGS[tone])


def _content(request: Request, habits: _Habits, rng: random.Random) -> Sentence:
    if request.intent == "privacy" and rng.random() < habits.leak:
        return rng.choice(_LEAKS)
    if rng.random() < habits.wrong_intent:
        return rng.choice(_off_topic(request))
    full = rng.random() < habits.full
    return rng.choice(_CONTENT[request.intent, full] or _CONTENT[request.intent, True])


def _off_topic(request: Request) -> list[Sentence]:
    """Content for other requests that uses only slots of this request."""
    slots = _slots_of(request)
    return [
        sentence
        for sentence in SENTENCES.values()
        if sentence.intent not in (None, request.intent) and sentence.slots <= slots
    ]


def _closing(habits: _Habits, rng: random.Random) -> Sentence | None:
    tone = rng.choices(_TONES, habits.closings)[0]
    return None if tone is None else rng.choice(_CLOSINGS[tone])


def write_response(request: Request, writer: str, rng: random.Random) -> str:
    """Writes a response as one of the four writers would.

    Raises:
        UnknownWriterError: ``writer`` is not one of `WRITERS`.
    """
    if writer not in _HABITS:
        raise UnknownWriterError(writer)
    habits = _HABITS[writer]
    sentences = (
        _opening(habits, rng),
        *rng.sample(_FLUFF, rng.choices((0, 1, 2), habits.fluff)[0]),
        _content(request, habits, rng),
        _closing(habits, rng),
    )
    words = _mixed_up(request, habits.wrong_slot, rng)
    return " ".join(sentence.text.format_map(words) for sentence in sentences if sentence)


def ideal_response(request: Request) -> str:
    """A response that the rubric scores exactly 10.0."""
    content = _CONTENT[request.intent, True][0]
    sentences = (_NAMED_OPENINGS["polite"][0], content, _CLOSINGS["polite"][0])
    return " ".join(sentence.text.format_map(_words(request)) for sentence in sentences)
