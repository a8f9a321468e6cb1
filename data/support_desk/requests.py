"""A customer's request, its prompt text, and parsing the text back into the request."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from data.support_desk.intents import INTENTS, SPLITS, Intent
from data.support_desk.lexicon import shape_of
from data.support_desk.templates import CLOSERS, GREETINGS, TEMPLATES, Template

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One customer's request; two requests are equal exactly if their texts are.

    Attributes:
        intent: What the customer wants.
        template: Id of the request template, e.g. ``refund-train-0``.
        name: The customer's first name.
        order: Two-digit order number as text, or None where the intent has no order.
        product: Adjective and noun, or None where the intent has no product.
        city: The city, or None where the intent has no city.
        other: The other customer that a privacy request asks about, else None.
        greeting: Greeting with the class ``{name}`` still in it.
        closer: Closing sentence, possibly empty.
        text: The prompt.
    """

    intent: Intent
    template: str
    name: str
    order: str | None
    product: tuple[str, str] | None
    city: str | None
    other: str | None
    greeting: str
    closer: str
    text: str


def build_request(
    template: Template, greeting: str, closer: str, *, name: str, slots: Mapping[str, str]
) -> Request:
    """Writes the prompt of a request.

    Args:
        template: What the customer asks for, and how it is phrased.
        greeting: One of ``GREETINGS``.
        closer: One of ``CLOSERS``.
        name: The customer's first name.
        slots: Words for the classes in the template's text: ``order``, ``city``, ``adjective``,
            ``noun``, and ``name`` for the other customer of a privacy request.

    Raises:
        KeyError: A class of the template has no word in ``slots``.
    """
    body = template.text.format_map(slots)
    parts = (greeting.format(name=name), body, closer)
    adjective, noun = slots.get("adjective"), slots.get("noun")
    return Request(
        intent=template.intent,
        template=template.id,
        name=name,
        order=slots.get("order"),
        product=(adjective, noun) if adjective is not None and noun is not None else None,
        city=slots.get("city"),
        other=slots.get("name"),
        greeting=greeting,
        closer=closer,
        text=" ".join(part for part in parts if part),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """Greeting, template and closer of one prompt skeleton, and its slot classes in order."""

    greeting: str
    template: Template
    closer: str
    classes: tuple[str, ...]


def _forms() -> Iterator[tuple[str, _Form]]:
    for split, intent, greeting, closer in itertools.product(SPLITS, INTENTS, GREETINGS, CLOSERS):
        for template in TEMPLATES[split, intent]:
            skeleton = " ".join(part for part in (greeting, template.text, closer) if part)
            classes = tuple(_PLACE.findall(template.text))
            yield skeleton, _Form(greeting, template, closer, classes)


_FORMS: Mapping[str, _Form] = dict(_forms())


def parse_request(text: str) -> Request | None:
    """The request that has exactly this text, or None if there is none."""
    skeleton, words = shape_of(text)
    form = _FORMS.get(skeleton)
    # Every greeting has one slot, the name; the template's own slots follow.
    if form is None or len(words) != 1 + len(form.classes):
        return None
    slots = dict(zip(form.classes, words[1:], strict=True))
    return build_request(form.template, form.greeting, form.closer, name=words[0], slots=slots)
