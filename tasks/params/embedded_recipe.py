"""Whether a model of one's own would be trained by the recipe of the embedded one.

The embedded model has 0.6 million parameters, and its rates are a hundred times those of a
pre-trained model: on SmolLM2-135M, twenty steps of SFT's Muon took the held-out loss from 1.161 to
1.752 nats a token, AdamW at 2e-5 took it to 0.779. Hours later nothing would say why.
"""

from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.reward import RewardParams
from rlhf.params.sft import SFTParams
from tasks.params.loading import Params

LARGE = 20_000_000
"""Parameters from which a model of one's own is taken for a pre-trained one."""

PRESETS = ((300_000_000, "smollm2-135m"), (2_000_000_000, "1b-gpu"))
"""Largest number of parameters -> the preset to try first; `8b-lora-gpu` above."""


def embedded_recipe(params: Params, parameters: int) -> str | None:
    """What is wrong where a large model of one's own meets the embedded model's optimisers.

    Only optimisers that are used, and of all weights, count: adapters and a head alone bear such
    rates.
    """
    if params.base.model is None or parameters < LARGE:
        return None
    found = _embedded_optimisers(params)
    if not found:
        return None
    preset = next((name for limit, name in PRESETS if parameters <= limit), "8b-lora-gpu")
    are = "is that" if len(found) == 1 else "are those"
    return (
        f"{parameters / 1e6:,.0f} million parameters, but {', '.join(found)} {are} of the "
        "embedded model, whose rates ruin a pre-trained one; take a preset, which sets them (make "
        f"repro PRESET={preset}), or write your own"
    )


def _embedded_optimisers(params: Params) -> list[str]:
    sft, reward, ppo = params.sft, params.reward, params.ppo
    embedded = {
        "sft.optimiser": _same_rates(sft.optimiser, SFTParams().optimiser) and sft.lora is None,
        "reward.optimiser": _same_rates(reward.optimiser, RewardParams().optimiser)
        and reward.model is None
        and reward.lora is None,
        "ppo.optimiser": _same_rates(ppo.optimiser, PPOParams().optimiser) and ppo.lora is None,
        "ppo.value_optimiser": _same_rates(ppo.value_optimiser, PPOParams().value_optimiser)
        and ppo.has_value_function()
        and ppo.value_model == "separate",
    }
    return [key for key, same in embedded.items() if same]


def _same_rates(one: OptimiserParams, other: OptimiserParams) -> bool:
    """Whatever the schedule, the warm-up and the rest."""
    if one.name != other.name or one.lr != other.lr:
        return False
    return one.name != "muon" or one.muon_lr == other.muon_lr
