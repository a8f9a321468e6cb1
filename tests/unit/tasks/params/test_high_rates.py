"""Rates that would break a pre-trained model are said, and those of every preset are not."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.params.lora import LoraParams
from tasks.params.high_rates import high_rates
from tasks.params.loading import Params, load_params
from tasks.params.presets import available_presets, take_preset

ROOT = Path(__file__).resolve().parents[4]
LARGEST = {"smollm2-135m": 134_515_008, "1b-gpu": 1_240_000_000, "8b-lora-gpu": 8_030_000_000}


def params_of(preset: str, folder: Path) -> Params:
    shutil.copy(ROOT / "params.yaml", folder)
    shutil.copytree(ROOT / "params", folder / "params")
    (folder / "mine").mkdir()
    take_preset(folder, preset, "mine")
    return load_params(folder / "params.yaml")


@pytest.mark.parametrize("name", available_presets(ROOT))
def test_no_preset_has_a_high_rate_for_the_models_that_it_is_for(name: str, tmp_path: Path) -> None:
    assert not list(high_rates(params_of(name, tmp_path), LARGEST[name]))


def test_the_rate_of_adapters_on_all_weights_is_said(tmp_path: Path) -> None:
    params = params_of("smollm2-135m", tmp_path)
    (note,) = high_rates(replace(params, ppo=replace(params.ppo, lora=None)), 134_515_008)
    assert note.startswith("ppo.optimiser.lr: 0.0003 for all of 135 million weights; published ")


def test_a_preset_for_a_smaller_model_is_said(tmp_path: Path) -> None:
    params = params_of("smollm2-135m", tmp_path)
    (note,) = high_rates(params, 1_240_000_000)
    assert note.startswith("reward.optimiser.lr: 0.0001 for all of 1,240 million weights; ")


def test_small_models_adapters_and_rewards_of_others_bear_them(tmp_path: Path) -> None:
    params = params_of("smollm2-135m", tmp_path)
    assert not list(high_rates(replace(params, ppo=replace(params.ppo, lora=None)), 19_999_999))
    adapted = replace(params, reward=replace(params.reward, lora=LoraParams()))
    others = replace(params, reward=replace(params.reward, model="mine/classifier"))
    for each in (adapted, others):
        assert not list(high_rates(each, 1_240_000_000))
