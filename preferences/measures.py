"""What the gate looks at instead of the texts: digests of them, and counts.

Great Expectations sees this table only. So its reports cannot show what people wrote (private, or
harmful in a web page), and a row costs about a hundred bytes however long its answers are.
"""

import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import pandas as pd

from preferences.defects import has_extra_turn, has_html, is_damaged, personal_data
from preferences.minhash import Signature, near_duplicates, signature
from preferences.records import Preference, Prompt, Sourced, prompt_text
from preferences.splitting import normal_text


@dataclass(frozen=True, slots=True)
class Candidate:
    """A preference before the gate."""

    sourced: Sourced
    fresh: bool
    """False for one that an earlier round let pass."""

    @property
    def preference(self) -> Preference:
        """The preference itself."""
        return self.sourced.preference


def digest(text: str) -> int:
    """64 bits that tell texts apart: among a million, two alike have odds of one to 30 million."""
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "big", signed=True)


def prompt_digest(prompt: Prompt) -> int:
    """Digest of a prompt; the same for prompts that differ only in case and white space."""
    return digest(normal_text(prompt_text(prompt)))


def visible_characters(text: str) -> int:
    """Length of a text without white space around it; 0 if nothing of it can be seen."""
    stripped = text.strip()
    # Other, separator and mark: a lone combining mark or zero-width space shows nothing.
    seen = any(unicodedata.category(character)[0] not in "CZM" for character in stripped)
    return len(stripped) if seen else 0


def measure(
    candidates: Iterable[Candidate], evaluation: Collection[int], *, near: bool = False
) -> pd.DataFrame:
    """One row of digests and counts per candidate; `evaluation` holds digests of prompts.

    `near` also looks for near duplicates, which takes most of the time.
    """
    signatures: list[Signature] = []
    rows = (
        _measured(candidate, evaluation, signatures if near else None) for candidate in candidates
    )
    table = pd.DataFrame.from_records(rows, columns=list(COLUMNS)).astype(COLUMNS)
    table["near_duplicate"] = near_duplicates(signatures) if near else False
    return table


COLUMNS = {
    "fresh": "bool",
    "heldout": "bool",
    "in_evaluation": "bool",
    "prompt": "int64",
    "chosen": "int64",
    "rejected": "int64",
    "chosen_characters": "int64",
    "rejected_characters": "int64",
    "extra_turn": "bool",
    "damaged": "bool",
    "html": "bool",
    "personal": "bool",
}


def _measured(
    candidate: Candidate, evaluation: Collection[int], signatures: list[Signature] | None
) -> tuple[bool | int, ...]:
    preference = candidate.preference
    answers = (preference.chosen, preference.rejected)
    if signatures is not None:
        signatures.append(signature((prompt_text(preference.prompt), *answers)))
    prompt = prompt_digest(preference.prompt)
    return (
        candidate.fresh,
        preference.split == "heldout",
        prompt in evaluation,
        prompt,
        digest(normal_text(preference.chosen)),
        digest(normal_text(preference.rejected)),
        visible_characters(preference.chosen),
        visible_characters(preference.rejected),
        any(map(has_extra_turn, answers)),
        any(map(is_damaged, answers)),
        any(map(has_html, answers)),
        any(map(personal_data, answers)),
    )
