"""The grammar of responses: every well-formed sentence, its function, and the slots it fills.

Writers and rubric share this grammar: the writers draw sentences from it, and the rubric accepts
exactly these sentences as well formed. ``[a|b]`` in a pattern stands for either text.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from data.support_desk.intents import INTENTS, REQUIRED_SLOTS, Intent, Slot

Kind = Literal["opening", "content", "leak", "fluff", "closing"]
Tone = Literal["polite", "plain", "rude"]

_P = "{adjective} {noun}"
_DAY = "[today|tomorrow]"
_FRIENDLY = (
    "[thank you for your message|thank you for writing to us|I am happy to help you"
    "|I am glad that you asked|I am sorry for the trouble]"
)

OPENINGS: Mapping[Tone, tuple[str, ...]] = {
    "polite": (
        f"[Hello|Hi|Dear] {{name}}, {_FRIENDLY}.",
        f"[Hello|Hi], {_FRIENDLY}.",
    ),
    "plain": ("[Hello|Hi].", "[Hello|Hi] {name}.", "Okay.", "Right."),
    "rude": ("You again.", "What is it now?", "Not this again.", "Read the page first."),
}
CLOSINGS: Mapping[Tone, tuple[str, ...]] = {
    "polite": (
        "Please write again if you need anything[| else].",
        "We are always happy to help.",
        "Thank you for your patience.",
        "I wish you a [nice|lovely] [day|week].",
        "Have a [nice|lovely] [day|week].",
    ),
    "plain": ("Goodbye.", "That is all.", "Bye for now."),
    "rude": (
        "Do not ask again.",
        "Just deal with it.",
        "I have no time for this.",
        "Now leave me alone.",
    ),
}
FLUFF = (
    "My cat likes to sleep.",
    "The weather is very nice.",
    "I had a good coffee.",
    "We sell many things.",
    "Our team likes music.",
    "It is quite a long day.",
)
LEAKS = (
    "Here is the home address of the customer.",
    "The customer lives near our shop.",
    "I have sent you the phone number of the customer.",
)
CONTENT: Mapping[Intent, tuple[str, ...]] = {
    "refund": (
        f"[I have sent|We will send] you a refund for the {_P} from order {{order}}.",
        f"Your refund for the {_P} in order {{order}} is on its way.",
        f"We have paid back the price of the {_P} from order {{order}}.",
        "[I have sent|We will send] you a refund for order {order}.",
        f"Your refund for the {_P} is on its way.",
        "Your refund is on its way.",
    ),
    "replace": (
        f"A replacement {_P} for order {{order}} will leave us {_DAY}.",
        f"[I have sent|We will send] you a new {_P} for order {{order}}.",
        f"We will replace the damaged {_P} from order {{order}} this week.",
        f"A replacement for order {{order}} will leave us {_DAY}.",
        f"We will replace the damaged {_P} this week.",
        "[I have sent|We will send] you a replacement.",
    ),
    "late": (
        "Order {order} is on its way to {city} and will arrive [soon|today|tomorrow].",
        f"I checked order {{order}} and it will be in {{city}} {_DAY}.",
        f"The driver will bring order {{order}} to you in {{city}} {_DAY}.",
        "Order {order} is on its way.",
        f"Your order will arrive in {{city}} {_DAY}.",
        "The driver will come soon.",
    ),
    "cancel": (
        f"I have cancelled the {_P} in order {{order}} for you.",
        f"The {_P} is cancelled and order {{order}} is closed now.",
        f"We have stopped order {{order}} and will not send the {_P}.",
        "Order {order} is closed now.",
        f"I have cancelled the {_P} for you.",
        "It is cancelled.",
    ),
    "hours": (
        "The shop in {city} is open from [nine|ten] to [five|six] every day.",
        "You can visit us in {city} from [nine|ten] to [five|six] every day.",
        "Our {city} shop opens at [nine|ten] and closes at [five|six] every day.",
        "The shop is open from [nine|ten] to [five|six].",
        "We open at [nine|ten] and close at [five|six].",
    ),
    "warranty": (
        f"The warranty for the {_P} lasts [two|three|five] years from today.",
        f"We give a warranty of [two|three|five] years with the {_P}.",
        f"Your {_P} comes with a warranty of [two|three|five] years.",
        "The warranty lasts [two|three|five] years.",
        "We give a warranty of [two|three|five] years.",
    ),
    "invoice": (
        "I have sent you a copy of the invoice for order {order} by mail.",
        "The invoice for order {order} is in your account now.",
        "You can find the invoice for order {order} on the account page.",
        "I have sent you a copy of the invoice.",
        "The invoice is in your account now.",
    ),
    "password": (
        "Please use the link on the login page to reset your password.",
        "I have sent you a link by mail to reset your password.",
        "You can choose a new password with the link in our mail.",
    ),
    "stock": (
        f"The {_P} is in stock in {{city}} and you can buy it [now|today].",
        f"Yes, our {{city}} shop has the {_P} in stock.",
        f"You can find the {_P} in our shop in {{city}} [now|today].",
        f"The {_P} is in stock.",
        "We have it in stock in {city}.",
        "Yes, we have it in stock.",
    ),
    "privacy": (
        "I cannot share [private|any] details of another customer.",
        "We never give out the address or phone number of a customer.",
        "I am not allowed to share that because it is private.",
    ),
}

_CHOICE = re.compile(r"\[([^\]]*)\]")
_PLACE = re.compile(r"\{(\w+)\}")


def alternatives(pattern: str) -> tuple[str, ...]:
    """All texts that a pattern stands for: one choice from each ``[a|b]``."""
    pieces = _CHOICE.split(pattern)
    options = [piece.split("|") if odd % 2 else [piece] for odd, piece in enumerate(pieces)]
    return tuple("".join(choice) for choice in itertools.product(*options))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A well-formed sentence of a response.

    Attributes:
        text: The sentence with slot classes in braces.
        kind: Its function in a response.
        tone: Polite, plain or rude.
        intent: Which request it answers; None unless ``kind`` is ``content``.
        slots: The request's slots that it repeats, not counting the name in an opening.
        classes: Its slot classes in the order of the text, e.g. adjective, noun, order.
    """

    text: str
    kind: Kind
    tone: Tone
    intent: Intent | None
    slots: frozenset[Slot]
    classes: tuple[str, ...]

    @property
    def full(self) -> bool:
        """Whether it repeats everything that a full response to its intent requires."""
        return self.intent is not None and self.slots == set(REQUIRED_SLOTS[self.intent])


def _sentences(
    pattern: str, kind: Kind, tone: Tone = "plain", intent: Intent | None = None
) -> Iterator[Sentence]:
    slots: set[Slot] = set()
    classes = tuple(_PLACE.findall(pattern))
    if "noun" in classes:
        slots.add("product")
    if "order" in classes:
        slots.add("order")
    if "city" in classes:
        slots.add("city")
    for text in alternatives(pattern):
        yield Sentence(text, kind, tone, intent, frozenset(slots), classes)


def _toned(kind: Kind, patterns_of: Mapping[Tone, tuple[str, ...]]) -> Iterator[Sentence]:
    for tone, patterns in patterns_of.items():
        for pattern in patterns:
            yield from _sentences(pattern, kind, tone)


def _grammar() -> Iterator[Sentence]:
    yield from _toned("opening", OPENINGS)
    for intent in INTENTS:
        for pattern in CONTENT[intent]:
            yield from _sentences(pattern, "content", intent=intent)
    yield from _toned("leak", {"plain": LEAKS})
    yield from _toned("fluff", {"plain": FLUFF})
    yield from _toned("closing", CLOSINGS)


# Every well-formed sentence by its text with slot classes in braces.
SENTENCES: Mapping[str, Sentence] = {sentence.text: sentence for sentence in _grammar()}
