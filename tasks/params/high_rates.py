"""Rates for all weights of a pre-trained model far above those of recipes that worked.

Adapters bear ten times the rate of whole weights, and a small model more than a large one. So a
preset with one line changed (`ppo.lora: null`), or taken for a model of another size, may train at
a rate that breaks the model within some steps. Published: PPO 3e-6 (Huang et al. 2024, 1B to 6.9B;
TRL's example for 7B), 1e-5 (Safe RLHF, 1B and 7B); value models 5e-6 to 1e-5 (Safe RLHF, OpenRLHF,
verl); reward models 3e-6 to 1e-5 (Tülu 3, TRL), 4e-5 (SmolTulu, 1.7B).
"""

from collections.abc import Iterator

from rlhf.params.optimiser import OptimiserParams
from tasks.params.embedded_recipe import LARGE
from tasks.params.loading import Params

SMALL = 300_000_000
"""Parameters up to which reward models have learnt at 1e-4 here (docs/preference-gate.md)."""


def high_rates(params: Params, parameters: int) -> Iterator[str]:
    """A note for each optimiser of all weights whose rate is three times the highest known, or so.

    Those of the embedded recipe are refused before (`embedded_recipe`).
    """
    if parameters < LARGE:
        return
    ppo, reward = params.ppo, params.reward
    found: list[tuple[str, OptimiserParams, float]] = []
    if reward.model is None and reward.lora is None:
        limit = 1e-4 if parameters <= SMALL else 5e-5
        found.append(("reward", reward.optimiser, limit))
    if ppo.lora is None:
        found.append(("ppo", ppo.optimiser, 3e-5))
    for section, optimiser, limit in found:
        if optimiser.name == "adamw" and optimiser.lr > limit:
            yield (
                f"{section}.optimiser.lr: {optimiser.lr:g} for all of {parameters / 1e6:,.0f} "
                f"million weights; published recipes stay well below {limit:g}, and only "
                f"adapters ({section}.lora) bear more; lower it, or take the preset for this size "
                "(docs/presets.md)"
            )
