"""What enters the gate: each row assigned to its side and measured once.

Does not import Great Expectations, so that damaged data are found before that is imported.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from preferences.measures import Candidate, Measured, measure, prompt_digest
from preferences.params import ValidateParams
from preferences.records import Prompt, Sourced, Split
from preferences.splitting import split_of
from preferences.tokens import TokenLimit


def candidates_of(
    fresh: Iterable[Sourced], earlier: Sequence[Sourced], heldout_fraction: float
) -> list[Candidate]:
    """Earlier rows, then fresh ones, each assigned to its side."""
    sides: dict[int, Split] = {}
    for sourced in earlier:
        sides.setdefault(prompt_digest(sourced.preference.prompt), sourced.preference.split)
    candidates = [Candidate(sourced, fresh=False) for sourced in earlier]
    for sourced in fresh:
        known = sides.get(prompt_digest(sourced.preference.prompt)) if sides else None
        candidates.append(on_its_side(sourced, heldout_fraction, known))
    return candidates


def on_its_side(sourced: Sourced, heldout_fraction: float, known: Split | None = None) -> Candidate:
    """A fresh row on the side of its prompt; `known` is the side of its earlier rows."""
    preference = sourced.preference
    side = known or split_of(preference.prompt, heldout_fraction=heldout_fraction)
    if side != preference.split:
        sourced = Sourced(replace(preference, split=side), sourced.where)
    return Candidate(sourced, fresh=True)


def inspect(
    candidates: Iterable[Candidate],
    evaluation_prompts: Sequence[Prompt],
    params: ValidateParams,
    tokens: TokenLimit | None = None,
) -> Measured:
    """The measures that the active rules need, in one pass."""
    near = {
        rule
        for rule in ("near_duplicates", "near_leaks")
        if getattr(params.severities, rule) != "off"
    }
    own = {name: re.compile(pattern) for name, pattern in params.personal_patterns.items()}
    return measure(
        candidates, evaluation_prompts, near=near, alike=params.alike, tokens=tokens, own=own
    )
