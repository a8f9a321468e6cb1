"""PPO with the options that the default leaves off, and second rounds, on tiny models."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.options_world import (  # noqa: F401
    LORA,
    assert_resumes,
    built_fixture,
    history,
    same,
    weights,
    world_fixture,
)
from tests.stage_world import forget, run, set_params

pytestmark = pytest.mark.long

EVERYTHING = {
    "rewards": {"learned": 0.5, "length": 0.2, "relevance": 0.3, "format": 0.1},
    "kl_adaptive": {"target": 2.0, "horizon": 200},
    "kl_in": "loss",
    "kl_estimator": "k2",
    "lam": 0.9,
    "whiten_rewards": True,
    "advantage_clip": 3.0,
    "value_huber_delta": 1.0,
    "value_clip_range": 0.2,
    "value_warmup_iterations": 1,
    "value_epochs": 2,
    "dual_clip": 3.0,
    "entropy_coef": 0.01,
    "length_penalty": 0.01,
    "missing_end": "replace",
    "target_approx_kl": 0.5,
}


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])
def test_ppo_with_every_option_at_once_resumes_to_the_same_bytes(
    world: Path, lora: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
):
    stage = "ppo@r1"
    average = 0.8 if lora is None else None
    set_params(world, "ppo", {**EVERYTHING, "lora": lora, "average_decay": average})
    forget(world, stage)
    assert run(world, stage) == 0
    rows = history(world, stage)
    mix = EVERYTHING["rewards"]
    for row in rows:
        parts = {"learned": row["objective/learned"]}
        parts |= {rule: row[f"objective/rule_{rule}"] for rule in ("length", "relevance", "format")}
        wanted = sum(mix[name] * float(part) for name, part in parts.items())
        assert float(row["objective/score"]) == pytest.approx(wanted, abs=1e-5)

    assert_resumes(world, stage, monkeypatch)


def test_s64_a_round_without_a_value_function_is_published_without_one_and_resumes(
    world: Path, monkeypatch: pytest.MonkeyPatch
):
    """From a policy that has one, which stays behind."""
    stage, folder = "ppo@r1", world / "models/rounds/r1/policy"
    assert (folder / "value_function").is_dir()
    set_params(world, "ppo", {"advantage": "grpo", "samples_per_prompt": 4})
    forget(world, stage)
    assert run(world, stage) == 0
    rows = history(world, stage)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert [name for name in listed if name.endswith(".safetensors")] == ["model.safetensors"]
    assert not (folder / "value_function").exists()
    kept = json.loads((world / "results/ppo/r1/metrics.json").read_text())
    assert [name for name in [*rows[0], *kept] if name.startswith("value/")] == []

    assert_resumes(world, stage, monkeypatch)

    add_second_round(world, "models/rounds/r1/policy")
    set_params(world, "ppo", {"advantage": "gae", "samples_per_prompt": 2})
    assert run(world, "ppo@r2") == 0
    assert (world / "models/rounds/r2/policy/value_function").is_dir()


def test_an_averaged_policy_is_published_with_what_else_the_round_made(world: Path):
    """Training itself is the same; the folder differs in the policy's weights alone."""
    stage, folder = "ppo@r1", world / "models/rounds/r1/policy"
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    value, last = folder / "value_function/weights.safetensors", weights(world, str(folder))
    before, curves = value.read_bytes(), history(world, stage)
    set_params(world, "ppo", {"average_decay": 0.5})

    assert run(world, stage) == 0
    assert (value.read_bytes(), history(world, stage)) == (before, curves)
    assert not same(last, weights(world, str(folder)))
    set_params(world, "ppo", {"average_decay": 0.5, "iterations": 1})
    assert run(world, stage) == 0
    alone = weights(world, str(folder))
    set_params(world, "ppo", {"average_decay": None})
    assert run(world, stage) == 0
    assert same(alone, weights(world, str(folder)))


def add_second_round(root: Path, start: str) -> None:
    """A round r2 whose policy is that of r1, with the reward model of r1."""
    entry = {
        "policy": "models/rounds/r1/policy",
        "start": start,
        "reward_model": "models/rounds/r1/reward",
        "preferences": "data/rounds/r1/preferences",
    }
    set_params(root, "rounds", {"r2": entry})
    shutil.copytree(root / "models/rounds/r1/reward", root / "models/rounds/r2/reward")


def test_a_second_round_may_start_anew_from_sft(world: Path):
    """With the KL at 0 and a value function that starts from the reward model, as in r1."""
    add_second_round(world, "models/sft")
    assert run(world, "ppo@r2") == 0

    assert float(history(world, "ppo@r2")[0]["objective/kl"]) == pytest.approx(0, abs=1e-6)
    set_params(world, "ppo", {"iterations": 0})
    assert run(world, "ppo@r2") == 0
    assert same(weights(world, "models/sft"), weights(world, "models/rounds/r2/policy"))
    value = load_file(world / "models/rounds/r2/policy/value_function/weights.safetensors")
    carried = load_file(world / "models/rounds/r1/policy/value_function/weights.safetensors")
    assert not torch.equal(value["head.weight"], carried["head.weight"])


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])
def test_a_second_round_may_start_between_sft_and_the_policy(world: Path, lora):
    set_params(world, "ppo", {"lora": lora})
    assert run(world, "ppo@r1") == 0
    add_second_round(world, "models/rounds/r1/policy")
    set_params(world, "ppo", {"iterations": 0, "start_sft": 0.25})
    assert run(world, "ppo@r2") == 0

    names = ("models/sft", "models/rounds/r1/policy", "models/rounds/r2/policy")
    sft, policy, found = (weights(world, name) for name in names)
    assert not same(found, policy)
    for name, weight in found.items():
        wanted = 0.25 * sft[name].double() + 0.75 * policy[name].double()
        torch.testing.assert_close(weight.double(), wanted, rtol=0, atol=1e-6)


def test_a_second_round_continues_from_the_adapter_of_the_first(world: Path):
    set_params(world, "ppo", {"lora": LORA, "kl_coef": 0.0})
    add_second_round(world, "models/rounds/r1/policy")
    forget(world, "ppo@r1")
    assert run(world, "ppo@r1") == 0
    assert run(world, "ppo@r2") == 0

    first, second = history(world, "ppo@r1"), history(world, "ppo@r2")
    # To SFT, whose adapter is off: nothing at first, and in round 2 what round 1 has learnt.
    assert float(first[0]["objective/kl"]) == pytest.approx(0, abs=1e-6)
    assert abs(float(second[0]["objective/kl"])) > 1e-5
    one, two = (weights(world, f"models/rounds/{key}/policy") for key in ("r1", "r2"))
    assert not same(one, two)
