"""What customers want, what a full response must repeat of it, and the names of the splits."""

from collections.abc import Mapping
from typing import Literal, get_args

Split = Literal["train", "heldout", "test"]
Intent = Literal[
    "refund",
    "replace",
    "late",
    "cancel",
    "hours",
    "warranty",
    "invoice",
    "password",
    "stock",
    "privacy",
]
Slot = Literal["product", "order", "city"]

SPLITS: tuple[Split, ...] = get_args(Split)
INTENTS: tuple[Intent, ...] = get_args(Intent)

# What a full response must repeat. "product" is an adjective and a noun and counts as one slot.
REQUIRED_SLOTS: Mapping[Intent, tuple[Slot, ...]] = {
    "refund": ("product", "order"),
    "replace": ("product", "order"),
    "late": ("order", "city"),
    "cancel": ("product", "order"),
    "hours": ("city",),
    "warranty": ("product",),
    "invoice": ("order",),
    "password": (),
    "stock": ("product", "city"),
    "privacy": (),
}
