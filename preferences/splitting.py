"""Which prompts are held out: decided by the prompt alone, so it never changes as data grow."""

import hashlib

from preferences.records import Prompt, Split, prompt_text


def normal_text(text: str) -> str:
    """A text without what hardly tells two apart: case, and how much white space is where."""
    return " ".join(text.casefold().split())


def split_of(prompt: Prompt, *, heldout_fraction: float) -> Split:
    """The side of a prompt; about `heldout_fraction` (0 to 1) of all prompts are held out.

    A prompt stays on its side whatever else is in the data; and one that is held out stays so when
    the fraction grows. Prompts that differ only in case or white space are on the same side.
    """
    digest = hashlib.sha256(normal_text(prompt_text(prompt)).encode("utf-8")).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return "heldout" if position < heldout_fraction else "train"
