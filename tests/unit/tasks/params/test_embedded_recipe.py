"""The embedded model's rates are refused for a large model of one's own, and only there."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from tasks.params.embedded_recipe import embedded_recipe
from tasks.params.loading import Params, load_params

ROOT = Path(__file__).resolve().parents[4]
OWN = OptimiserParams(lr=2e-5)


@pytest.fixture(scope="module")
def params() -> Params:
    """The defaults, with a model of one's own."""
    defaults = load_params(ROOT / "params.yaml")
    return replace(defaults, base=replace(defaults.base, model="mine"))


def test_all_four_optimisers_and_the_preset_are_named_in_one_line(params: Params) -> None:
    assert embedded_recipe(params, 134_515_008) == (
        "135 million parameters, but sft.optimiser, reward.optimiser, ppo.optimiser, "
        "ppo.value_optimiser are those of the embedded model, whose rates ruin a pre-trained one; "
        "take a preset, which sets them (make repro PRESET=smollm2-135m), or write your own"
    )


@pytest.mark.parametrize(
    ("parameters", "preset"),
    [(500_000_000, "1b-gpu"), (1_240_000_000, "1b-gpu"), (8_000_000_000, "8b-lora-gpu")],
)
def test_the_preset_fits_the_size(params: Params, parameters: int, preset: str) -> None:
    found = embedded_recipe(params, parameters)
    assert found is not None
    assert f"make repro PRESET={preset})" in found
    assert (ROOT / "params/presets" / f"{preset}.yaml").is_file()


def test_small_models_and_the_embedded_one_are_left_alone(params: Params) -> None:
    assert embedded_recipe(params, 19_999_999) is None
    embedded = replace(params, base=replace(params.base, model=None))
    assert embedded_recipe(embedded, 134_515_008) is None


def test_rates_of_ones_own_are_left_alone_one_by_one(params: Params) -> None:
    """Adapters, and a value head on the policy's trunk, bear the embedded model's rates."""
    params = replace(params, sft=replace(params.sft, optimiser=OWN))
    params = replace(params, reward=replace(params.reward, lora=LoraParams()))
    ppo = replace(params.ppo, optimiser=OWN)
    found = embedded_recipe(replace(params, ppo=ppo), 134_515_008)
    assert found is not None
    assert "but ppo.value_optimiser is that of the embedded model" in found

    shared = replace(ppo, value_model="shared", value_init="zero")
    assert embedded_recipe(replace(params, ppo=shared), 134_515_008) is None
    adapters = replace(shared, optimiser=params.ppo.optimiser, lora=LoraParams())
    assert embedded_recipe(replace(params, ppo=adapters), 134_515_008) is None
    own = replace(ppo, value_optimiser=OWN)
    assert embedded_recipe(replace(params, ppo=own), 134_515_008) is None


def test_rates_that_nothing_uses_are_left_alone(params: Params) -> None:
    """Without a value function or a reward model of one's own, and with SFT's adapters."""
    params = replace(params, sft=replace(params.sft, lora=LoraParams()))
    params = replace(params, ppo=replace(params.ppo, optimiser=OWN))
    for model in ("none", "mine/classifier"):
        scored = replace(params, reward=replace(params.reward, model=model))
        found = embedded_recipe(scored, 134_515_008)
        assert "but ppo.value_optimiser is that" in str(found)
        for advantage in ("rloo", "grpo", "reinforce_pp"):
            ppo = replace(scored.ppo, advantage=advantage, samples_per_prompt=4)
            assert embedded_recipe(replace(scored, ppo=ppo), 134_515_008) is None


def test_the_embedded_rates_are_known_whatever_the_schedule(params: Params) -> None:
    sft = replace(params.sft.optimiser, schedule="constant", warmup_steps=3)
    found = embedded_recipe(replace(params, sft=replace(params.sft, optimiser=sft)), 134_515_008)
    assert found is not None
    assert "but sft.optimiser, reward.optimiser" in found
    for own in (replace(sft, muon_lr=1e-4), replace(sft, lr=1e-5), replace(sft, name="adamw")):
        changed = replace(params, sft=replace(params.sft, optimiser=own))
        assert "but reward.optimiser, ppo.optimiser" in str(embedded_recipe(changed, 134_515_008))
