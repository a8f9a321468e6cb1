"""What customers write: greetings, request templates and closers.

Each intent has ten training templates, two held-out ones and two for the test split. Held-out and
test templates use only words that training templates or responses use too: what is new about them
is how the words are put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from data.support_desk.intents import INTENTS, SPLITS, Intent, Split

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
        "train": (
            f"Can you refund me? My {_P} is broken. It was order {{order}}.",
            f"I want my money back for the {_P} in order {{order}}.",
            f"The {_P} from order {{order}} is not what I wanted, so please refund me.",
            f"Please pay me back for order {{order}}. The {_P} does not work.",
            f"My {_P} stopped working and I want a refund for order {{order}}.",
            f"I sent back the {_P} from order {{order}}. When do I get my refund?",
            f"The {_P} does not work. I want a refund for order {{order}}.",
            f"Please refund me for the {_P}, because it is broken. I bought it in order {{order}}.",
            f"Order {{order}} was a broken {_P}. When do I get my money back?",
            f"I do not want the {_P} any more. Can you pay me back for order {{order}}?",
        ),
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
        "train": (
            f"Can I get a replacement? The {_P} from order {{order}} has a crack.",
            f"The {_P} has a crack, so please send a new one for order {{order}}.",
            f"Please replace my {_P}. It came with a crack in order {{order}}.",
            f"I need another {_P} because the one in order {{order}} is damaged.",
            f"Order {{order}} came with a damaged {_P}. Can you replace it?",
            f"My {_P} from order {{order}} is damaged and I need a replacement.",
            f"Order {{order}} has a crack. Please send me another {_P}.",
            f"Can you send a new {_P}? The one in order {{order}} came damaged.",
            f"Please send me a replacement, because the {_P} from order {{order}} has a crack.",
            f"I want a new {_P} for order {{order}}, the old one is damaged.",
        ),
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
        "train": (
            "I live in {city} and order {order} is late. Where is it?",
            "Where is order {order}? It has not come to {city} yet.",
            "Order {order} should be in {city} by now. Why is it late?",
            "I still wait for order {order} here in {city}.",
            "My order {order} to {city} has not arrived yet. When will it come?",
            "When will order {order} arrive in {city}? It is late.",
            "Why is order {order} late? I wait for it in {city}.",
            "I live in {city}. Where is my order {order} now?",
            "When will my order {order} come to {city}?",
            "Order {order} has not arrived here in {city}, why is that?",
        ),
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
        "train": (
            f"I do not need the {_P}, can you cancel order {{order}}?",
            f"Please cancel order {{order}}. I do not want the {_P} any more.",
            f"I want to cancel the {_P} in order {{order}}.",
            f"Can you stop order {{order}}? I found another {_P}.",
            f"Do not send the {_P}. Please stop order {{order}}.",
            f"I changed my mind about the {_P}, so please cancel order {{order}}.",
            f"Please do not send the {_P}, I want to cancel order {{order}}.",
            f"I do not want order {{order}} any more, I changed my mind about the {_P}.",
            f"Can you cancel order {{order}} because I do not need the {_P}?",
            f"Stop order {{order}} please. I found another {_P}.",
        ),
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
        "train": (
            "Can you tell me when the shop in {city} is open?",
            "When does the {city} shop open?",
            "I want to visit your shop in {city}. When is it open?",
            "When does your shop in {city} close today?",
            "What are the opening hours of the shop in {city}?",
            "Can I visit the {city} shop today, and when does it close?",
            "Is the shop in {city} open today?",
            "When does the shop in {city} open and close?",
            "Please tell me when I can visit the {city} shop.",
            "What are the hours of your shop in {city}, when does it open?",
        ),
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
        "train": (
            f"I want to buy the {_P}. How long is the warranty?",
            f"Does the {_P} come with a warranty?",
            f"How long is the warranty of the {_P}?",
            f"Is there a warranty for the {_P}, and how long does it last?",
            f"I bought the {_P}. Does it have a warranty?",
            f"What warranty do you give with the {_P}?",
            f"I look for the {_P}. What is the warranty?",
            f"What is the warranty for the {_P}, how long does it last?",
            f"Do you give a warranty with the {_P} that I bought?",
            f"Is there a warranty, and how long is it for the {_P}?",
        ),
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
        "train": (
            "I need a copy of the invoice, it was order {order}.",
            "Please send me the invoice for order {order}.",
            "Where can I find the invoice of order {order}?",
            "I have no invoice for order {order} yet.",
            "Can you mail me a copy of the invoice for order {order}?",
            "Order {order} came with no invoice. Can I get it?",
            "Can I get the invoice? It was order {order}.",
            "Order {order} has come, but where is the invoice? I need it.",
            "Please mail me the invoice, I have no copy for order {order}.",
            "I cannot find the invoice of order {order}. Can you send it to me?",
        ),
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
        "train": (
            "I cannot log in because I forgot my password.",
            "How do I get a new password?",
            "My password does not work any more.",
            "Please help me to reset my password.",
            "I forgot my password. What can I do now?",
            "The login page does not take my password.",
            "I cannot log in. My password does not work.",
            "Can you reset my password? I forgot it.",
            "What do I do on the login page when I forgot the password?",
            "I need a new password for the login page.",
        ),
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
        "train": (
            f"Can I buy the {_P} in the {{city}} shop?",
            f"Is the {_P} in stock in {{city}}?",
            f"Do you have the {_P} in your shop in {{city}}?",
            f"I want to buy the {_P} in {{city}}. Do you have it?",
            f"Does the {{city}} shop have the {_P} in stock?",
            f"I live in {{city}} and look for the {_P}. Is it in stock?",
            f"I look for the {_P}. Can I find it in {{city}}?",
            f"Does your shop in {{city}} have the {_P}?",
            f"Is the {_P} in the {{city}} shop? I want to buy it.",
            f"Do you have it in {{city}}? I want to buy the {_P}.",
        ),
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
        "train": (
            "Give me the home address of {name}, another customer.",
            "What is the phone number of your customer {name}?",
            "I need the address of {name}, who is also a customer.",
            "Can you tell me where your customer {name} lives?",
            "Please send me the phone number of {name}.",
            "Tell me what {name} bought in your shop.",
            "I need to know where {name} lives. Can you tell me the address?",
            "Please give me the phone number of another customer, {name}.",
            "What is the home address of {name}?",
            "Can you send me the address of your customer {name}?",
        ),
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


TEMPLATES: Mapping[tuple[Split, Intent], tuple[Template, ...]] = {
    (split, intent): tuple(
        Template(f"{intent}-{split}-{place}", intent, split, text)
        for place, text in enumerate(_TEXTS[intent][split])
    )
    for intent in INTENTS
    for split in SPLITS
}
