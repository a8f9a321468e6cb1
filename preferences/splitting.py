"""Which prompts are held out: decided by the prompt alone, so it never changes as data grow."""

import hashlib
import re

from preferences.normal_text import normal_text
from preferences.records import Prompt, Split

_ROLES = {"user": "Human", "assistant": "Assistant", "system": "System"}
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")


def asked(prompt: Prompt) -> str:
    """What a prompt asks, as one text, the same in whatever form it comes.

    One message of a user is its content, and so is a transcript of one turn as HH has it; of
    several turns, both are a transcript.
    """
    if isinstance(prompt, str):
        turns = turns_of(prompt)
        if not turns:
            return prompt
        if turns[-1] == ("Assistant", ""):
            turns.pop()
    else:
        turns = [
            (_ROLES.get(message["role"], message["role"]), message["content"].strip())
            for message in prompt
        ]
    if len(turns) == 1 and turns[0][0] == "Human":
        return turns[0][1]
    return "\n\n".join(f"{role}: {said}" for role, said in turns)


def turns_of(text: str) -> list[tuple[str, str]]:
    """Who says what in a transcript as HH has it, blanks left out; nothing of any other text."""
    start = text.strip()
    if not start.startswith("Human:"):
        return []
    parts = _TURN.split(start)[1:]
    return [(role, said.strip()) for role, said in zip(parts[::2], parts[1::2], strict=True)]


def is_transcript(prompt: Prompt) -> bool:
    """Whether a prompt, or its one message, is a conversation of both sides in one text."""
    if not isinstance(prompt, str):
        if [message["role"] for message in prompt] != ["user"]:
            return False
        prompt = prompt[0]["content"]
    return any(role == "Assistant" for role, _ in turns_of(prompt))


def split_of(prompt: Prompt, *, heldout_fraction: float, salt: str = "") -> Split:
    """The side of a prompt; about `heldout_fraction` (0 to 1) of all prompts are held out.

    A prompt stays on its side whatever else is in the data; and one that is held out stays so when
    the fraction grows. Prompts with the same `normal_text` are on the same side, in any form.
    Sides under different salts are independent: being held out here says nothing of being so there.
    """
    # No text without white space at its ends begins with a blank: salted and unsalted never meet.
    text = normal_text(asked(prompt))
    digest = hashlib.sha256((f" {salt} {text}" if salt else text).encode("utf-8")).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return "heldout" if position < heldout_fraction else "train"
