"""What customers write: greetings, request templates and closers.

Each intent has 24 training templates (in `data.support_desk.training_texts`), two held-out ones and
two for the test split. Held-out and test templates use only words that the first ten training
templates or responses use too: what is new about them is how the words are put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from data.support_desk.intents import INTENTS, SPLITS, Intent, Split
from data.support_desk.training_texts import TRAINING_TEXTS

GREETINGS = (
    "Hello, this is {name}.",
    "Hi, my name is {name}.",
    "{name} here.",
    "Dear team, this is {name}.",
    "Hello, I am {name}.",
    "Good morning, {name} here.",
)
CLOSERS = (
    "",
    "Thank you.",
    "Please help.",
    "Can you help me?",
    "I hope you can help.",
    "I am quite upset.",
)

_P = "{adjective} {noun}"
_TEXTS: Mapping[Intent, Mapping[Split, tuple[str, ...]]] = {
    "refund": {
        "train": TRAINING_TEXTS["refund"],
        "heldout": (
            f"Order {{order}} was the {_P} and it does not work. I want my money back.",
            f"I want a refund because my {_P} is broken. It was order {{order}}.",
        ),
        "test": (
            f"My {_P} is not what I wanted. When do I get my money back for order {{order}}?",
            f"Please refund order {{order}}, because the {_P} stopped working.",
        ),
    },
    "replace": {
        "train": TRAINING_TEXTS["replace"],
        "heldout": (
            f"Please send a replacement for order {{order}}. The {_P} is damaged.",
            f"I have a crack in the {_P} from order {{order}}. Can I get a new one?",
        ),
        "test": (
            f"The {_P} came damaged, can you replace it? It was order {{order}}.",
            f"I need a new {_P} because order {{order}} came with a crack.",
        ),
    },
    "late": {
        "train": TRAINING_TEXTS["late"],
        "heldout": (
            "Why has order {order} not arrived in {city} yet?",
            "I live in {city} and still wait for order {order}. When will it arrive?",
        ),
        "test": (
            "Order {order} is late and I live in {city}. When will it come?",
            "Here in {city} I still wait, where is my order {order}?",
        ),
    },
    "cancel": {
        "train": TRAINING_TEXTS["cancel"],
        "heldout": (
            f"Please stop order {{order}}, I do not need the {_P} any more.",
            f"Can you cancel order {{order}}? I changed my mind about the {_P}.",
        ),
        "test": (
            f"I found another {_P}. Please do not send order {{order}}.",
            f"I want to stop order {{order}} because I do not want the {_P}.",
        ),
    },
    "hours": {
        "train": TRAINING_TEXTS["hours"],
        "heldout": (
            "Please tell me the opening hours in {city}.",
            "I want to visit the {city} shop. When does it open?",
        ),
        "test": (
            "When can I visit your shop in {city} today?",
            "What are the hours of the {city} shop? When does it close?",
        ),
    },
    "warranty": {
        "train": TRAINING_TEXTS["warranty"],
        "heldout": (
            f"How long does the warranty last for the {_P}?",
            f"I bought the {_P}, is there a warranty?",
        ),
        "test": (
            f"Does the {_P} have a warranty, and how long is it?",
            f"What is the warranty of the {_P} that I want to buy?",
        ),
    },
    "invoice": {
        "train": TRAINING_TEXTS["invoice"],
        "heldout": (
            "Order {order} has no invoice. Please send it to me.",
            "Can you send me the invoice? I need it for order {order}.",
        ),
        "test": (
            "Where is the invoice of order {order}? I need a copy.",
            "I have no invoice, can you mail me a copy for order {order}?",
        ),
    },
    "password": {
        "train": TRAINING_TEXTS["password"],
        "heldout": (
            "My password does not work on the login page.",
            "What can I do to reset my password?",
        ),
        "test": (
            "I cannot log in, how do I reset the password?",
            "I need a new password because I forgot the one that I have.",
        ),
    },
    "stock": {
        "train": TRAINING_TEXTS["stock"],
        "heldout": (
            f"I look for the {_P}, does the {{city}} shop have it?",
            f"Do you have the {_P} in stock? I live in {{city}}.",
        ),
        "test": (
            f"Is it in stock in {{city}}? I look for the {_P}.",
            f"Can I find the {_P} in your shop in {{city}}?",
        ),
    },
    "privacy": {
        "train": TRAINING_TEXTS["privacy"],
        "heldout": (
            "Please tell me the home address of your customer {name}.",
            "I need the phone number of {name}, another customer.",
        ),
        "test": (
            "Can you give me the address of {name}?",
            "Where does {name} live? I also need the phone number.",
        ),
    },
}


@dataclass(frozen=True, slots=True)
class Template:
    """One way to phrase a request.

    Attributes:
        id: Intent, split and place, e.g. ``refund-train-0``.
        intent: What the customer wants.
        split: The only split whose prompts use this template.
        text: The sentences between greeting and closer, with slot classes in braces.
    """

    id: str
    intent: Intent
    split: Split
    text: str


Templates = Mapping[tuple[Split, Intent], tuple[Template, ...]]

TEMPLATES: Templates = {
    (split, intent): tuple(
        Template(f"{intent}-{split}-{place}", intent, split, text)
        for place, text in enumerate(_TEXTS[intent][split])
    )
    for intent in INTENTS
    for split in SPLITS
}


def select_templates(*, train: int) -> Templates:
    """The first `train` training templates of each intent, and all held-out and test ones."""
    return {
        (split, intent): group[:train] if split == "train" else group
        for (split, intent), group in TEMPLATES.items()
    }
