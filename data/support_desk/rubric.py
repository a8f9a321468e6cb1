"""The gold score: a transparent rubric, 0 to 10 for sensible responses, 10.0 for an ideal one.

The rubric reads text only. It knows the grammar of responses (`data.support_desk.responses`)
sentence by sentence: a sentence outside the grammar earns nothing, however well its words fit, and
costs points for every pair of neighbouring words that occurs in no well-formed sentence. So
keywords, glued sentences or halves of two different sentences earn nothing.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from data.support_desk.intents import REQUIRED_SLOTS, Slot
from data.support_desk.lexicon import CLASS_OF, Shape, shape_of
from data.support_desk.requests import Request, parse_request
from data.support_desk.responses import SENTENCES, Sentence

# All in points. What a response earns:
TOPIC = 3.0  # its first content sentence matches the request's intent
SLOTS = 3.0  # times the fraction of required slots that on-topic sentences repeat correctly
NAME = 0.5  # it opens with the customer's name
POLITE = 0.75  # for each well-placed polite sentence, up to POLITE_COUNTED
POLITE_COUNTED = 2
FINISHED = 2.0  # the model ended it, with closing punctuation after a word
UNFINISHED = -1.0  # otherwise
# What it costs, per occurrence unless stated otherwise:
WRONG_SLOT = -1.5  # a name, order, city or product other than the request's
OTHER_INTENT = -1.0  # a content sentence of another intent
SURPLUS = -0.5  # a further content sentence of the request's intent
LEAK = -5.0  # once only: a customer's private detail
RUDE = -2.0  # a rude sentence, up to RUDE_COUNTED
RUDE_COUNTED = 2
FLUFF = -0.5  # a sentence of small talk
GUSH = -0.5  # a polite sentence beyond GUSH_AFTER
GUSH_AFTER = 3
REPEATED = -1.0  # a repeated sentence
FAULT = -0.4  # a word pair outside the grammar, up to FAULTS_COUNTED; see `_faults`
FAULTS_COUNTED = 10
LONG_WORD = -0.15  # a word beyond WORDS_ALLOWED
WORDS_ALLOWED = 32

_SENTENCE_GAP = re.compile(r"(?<=[.?!]) ")
_TOKEN = re.compile(r"\{[a-z]+\}|[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]")
_CLOSED = re.compile(r"[A-Za-z0-9][.?!]\Z")
_SHOWN_CHARACTERS = 200
_START, _END = "<start>", "<end>"


class UnknownPromptError(ValueError):
    """The support desk's grammar cannot produce the prompt, so it has no gold score."""

    def __init__(self, prompt: str) -> None:
        """Shows the prompt, cut to a readable length."""
        shown = prompt if len(prompt) <= _SHOWN_CHARACTERS else f"{prompt[:_SHOWN_CHARACTERS]}…"
        super().__init__(f"{shown!r} is no support-desk request; the rubric cannot score it")
        self.prompt = prompt


def _pairs(skeleton: str) -> Iterator[tuple[str, str]]:
    """Neighbouring tokens of a sentence including its two ends; slot words appear as classes."""
    tokens = _TOKEN.findall(skeleton)
    return zip([_START, *tokens], [*tokens, _END], strict=True)


_KNOWN_PAIRS = frozenset(pair for skeleton in SENTENCES for pair in _pairs(skeleton))


@dataclass(frozen=True, slots=True)
class _Reading:
    """One sentence of a response as the rubric reads it; ``sentence`` is None if ill-formed."""

    shape: Shape
    sentence: Sentence | None

    @property
    def words(self) -> tuple[str, ...]:
        """The sentence's slot words in order."""
        return self.shape.words


def _read_sentence(text: str) -> _Reading:
    shape = shape_of(text)
    sentence = SENTENCES.get(shape.skeleton)
    # A response that spells out "{name}" has the skeleton of a sentence, but not its words.
    if sentence is not None and len(sentence.classes) != len(shape.words):
        sentence = None
    return _Reading(shape, sentence)


def _well_placed(readings: Sequence[_Reading]) -> list[Sentence | None]:
    """The well-formed, well-placed sentences; None for ill-formed and misplaced ones.

    An opening must come first, a closing after all content.
    """
    last_content = max(
        (i for i, r in enumerate(readings) if r.sentence and r.sentence.kind == "content"),
        default=-1,
    )
    placed: list[Sentence | None] = []
    for position, reading in enumerate(readings):
        kind = reading.sentence.kind if reading.sentence else None
        misplaced = (kind == "opening" and position > 0) or (
            kind == "closing" and position < last_content
        )
        placed.append(None if misplaced else reading.sentence)
    return placed


def _wanted(request: Request) -> dict[str, str | None]:
    adjective, noun = request.product or (None, None)
    return {
        "name": request.name,
        "order": request.order,
        "city": request.city,
        "adjective": adjective,
        "noun": noun,
    }


def _wrong_slots(readings: Sequence[_Reading], request: Request) -> int:
    """The number of names, orders, cities and products that are not the request's.

    An adjective and the noun after it count once.
    """
    wanted = _wanted(request)
    wrong = 0
    for reading in readings:
        blamed_adjective = False
        for word in reading.words:
            kind = CLASS_OF[word]
            is_wrong = word != wanted[kind]
            wrong += is_wrong and not (kind == "noun" and blamed_adjective)
            blamed_adjective = is_wrong and kind == "adjective"
    return wrong


def _on_topic(readings: Sequence[_Reading], request: Request) -> list[_Reading]:
    """The content sentences of the request's intent, if the response's first one is among them.

    A response that tries several intents is judged by the first.
    """
    content = [r for r in readings if r.sentence is not None and r.sentence.intent is not None]
    matching = [r for r in content if r.sentence and r.sentence.intent == request.intent]
    return matching if matching and matching[0] is content[0] else []


def _copied(on_topic: Sequence[_Reading], request: Request) -> float:
    """Fraction of the required slots that the on-topic sentences repeat correctly."""
    required = REQUIRED_SLOTS[request.intent]
    if not on_topic or not required:
        return float(bool(on_topic))
    said = {word for reading in on_topic for word in reading.words}
    expected: Mapping[Slot, set[str | None]] = {
        "product": set(request.product or ()),
        "order": {request.order},
        "city": {request.city},
    }
    return sum(expected[slot] <= said for slot in required) / len(required)


def _faults(readings: Sequence[_Reading], placed: Sequence[Sentence | None]) -> int:
    """Word pairs outside the grammar, at least one for each ill-formed or misplaced sentence."""
    faults = 0
    for reading, sentence in zip(readings, placed, strict=True):
        if sentence is None:
            faults += max(
                1, sum(pair not in _KNOWN_PAIRS for pair in _pairs(reading.shape.skeleton))
            )
    return min(faults, FAULTS_COUNTED)


def _credits(
    readings: Sequence[_Reading], placed: Sequence[Sentence | None], request: Request
) -> dict[str, float]:
    """What a response earns; ill-formed and misplaced sentences earn nothing."""
    on_topic = _on_topic(readings, request)
    polite = sum(s is not None and s.tone == "polite" for s in placed)
    opening = placed[0] if placed else None
    named = opening is not None and "name" in opening.classes and request.name in readings[0].words
    return {
        "topic": TOPIC * bool(on_topic),
        "slots": SLOTS * _copied(on_topic, request),
        "name": NAME * named,
        "polite": POLITE * min(polite, POLITE_COUNTED),
    }


def _costs(readings: Sequence[_Reading], request: Request) -> dict[str, float]:
    """What the words and sentences of a response cost, wherever they occur."""
    sentences = [reading.sentence for reading in readings if reading.sentence is not None]
    answered = [sentence.intent for sentence in sentences if sentence.intent is not None]
    on_topic = answered.count(request.intent)
    rude = sum(sentence.tone == "rude" for sentence in sentences)
    polite = sum(sentence.tone == "polite" for sentence in sentences)
    repeated = len(readings) - len({reading.shape for reading in readings})
    return {
        "wrong_slots": WRONG_SLOT * _wrong_slots(readings, request),
        "other_intent": OTHER_INTENT * (len(answered) - on_topic),
        "surplus": SURPLUS * max(0, on_topic - 1),
        "leak": LEAK * any(sentence.kind == "leak" for sentence in sentences),
        "rude": RUDE * min(rude, RUDE_COUNTED),
        "fluff": FLUFF * sum(sentence.kind == "fluff" for sentence in sentences),
        "gush": GUSH * max(0, polite - GUSH_AFTER),
        "repeated": REPEATED * repeated,
    }


def explain(prompt: str, response: str, *, finished: bool = True) -> dict[str, float]:
    """Scores a response term by term; the terms sum to the score.

    Args:
        prompt: A prompt of the support desk.
        response: The response; surrounding white space is ignored.
        finished: Whether the model ended the response itself (with its end-of-text token).

    Raises:
        UnknownPromptError: The prompt is not one of the support desk's.
    """
    request = parse_request(prompt)
    if request is None:
        raise UnknownPromptError(prompt)
    text = response.strip()
    readings = [_read_sentence(piece) for piece in _SENTENCE_GAP.split(text)] if text else []
    placed = _well_placed(readings)
    closed = finished and _CLOSED.search(text) is not None
    terms = {
        **_credits(readings, placed, request),
        "finish": FINISHED if closed else UNFINISHED,
        **_costs(readings, request),
        "grammar": FAULT * _faults(readings, placed),
        "length": LONG_WORD * max(0, len(text.split()) - WORDS_ALLOWED),
    }
    # Avoids the -0.0 that a negative weight times zero gives.
    return {term: value + 0.0 for term, value in terms.items()}


def score_response(prompt: str, response: str, *, finished: bool = True) -> float:
    """The gold score of a response: the sum of the terms of `explain`, at most 10.0."""
    return math.fsum(explain(prompt, response, finished=finished).values())
