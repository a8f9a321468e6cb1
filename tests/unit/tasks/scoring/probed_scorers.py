"""Scorers that read a row's text and give it a number by a rule, and what probes say of them."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from preferences.records import Preference
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder
from tasks.running.progress import Progress
from tasks.scoring.reward_probes import DEMANDS, PASSES, Probe, Scorer, probe
from tests import tiny
from tests.tiny import COMPUTE, tokenizer

Rule = Callable[[str, str], float]
"""Prompt and response -> score."""

PAIRS = 120
GOOD = "I am sorry, Kim. A new lamp is on its way"
LONG, SHORT = "It left on Monday and comes tomorrow, and my parcel left, and it left", "no"
NUMBERS = {chr(0x41 + n % 26) + chr(0x61 + n // 26) for n in range(PAIRS)}


class Reading(Encoder):
    """Keeps the prompt and response behind each row of ids."""

    def __init__(self) -> None:
        super().__init__(tokenizer())
        self.read: dict[tuple[int, ...], tuple[str, str]] = {}

    def encode(self, prompt: Any, response: str, *, finished: bool) -> list[int]:
        ids = super().encode(prompt, response, finished=finished)
        self.read[tuple(ids)] = (prompt, response)
        return ids


class Ruled(RewardModel):
    """Scores what is behind a row by a rule."""

    def __init__(self, rule: Rule, encoder: Reading):
        super().__init__(tiny.reward_model(vocabulary=len(tokenizer())).classifier)
        self.rule, self.encoder = rule, encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = [tuple(row[kept].tolist()) for row, kept in zip(ids, mask, strict=True)]
        return torch.tensor([self.rule(*self.encoder.read[row]) for row in rows])


def rows(count: int = PAIRS) -> list[Preference]:
    """Each chosen response names its prompt; every other rejected one is the longer, or shorter."""
    names = sorted(NUMBERS)[:count]
    return [
        Preference(
            pair_id=name,
            prompt_id=name,
            prompt=f"{name}?",
            chosen=f"{GOOD} {name}",
            rejected=LONG if place % 2 else SHORT,
            split="heldout",
        )
        for place, name in enumerate(names)
    ]


def scorer(rule: Rule, encoder: Encoder, *, max_tokens: int = 1000) -> Scorer:
    progress = Progress("probes", PASSES, "passes")
    return Scorer(Ruled(rule, encoder), encoder, COMPUTE, max_tokens=max_tokens, progress=progress)


def asked(
    rule: Rule, pairs: list[Preference] | None = None, others: Sequence[Preference] = ()
) -> dict[str, Probe]:
    encoder = Reading()
    found = probe(
        scorer(rule, encoder),
        rows() if pairs is None else pairs,
        others=others,
        draws=random.Random(0),
    )
    assert [one.name for one in found] == list(DEMANDS)
    return {one.name: one for one in found}


def known(prompt: str, response: str) -> float:
    """1 for exactly the good response to the prompt, 0 for everything else."""
    return float(response == f"{GOOD} {prompt[:-1]}")


def red(found: dict[str, Probe]) -> set[str]:
    return {name for name, one in found.items() if not one.passed}
