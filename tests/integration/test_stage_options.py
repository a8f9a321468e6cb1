"""The training stages with the options that the default leaves off, on tiny models."""

import csv
import json
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from preferences.splitting import split_of
from rlhf.ensembles import load_scorer
from rlhf.manifests import verify_files
from tests import stage_world
from tests.stage_world import digest, forget, interrupt_at, run, set_params

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("options") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def history(root: Path, stage: str) -> list[dict[str, str]]:
    section, _, key = stage.partition("@")
    with (root / "results" / section / key / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def weights(root: Path, folder: str) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(root / folder).state_dict()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_packed_demonstrations_train_the_model_that_unpacked_ones_train(world: Path):
    """A row of several demonstrations, none of which sees another: only rounding differs."""
    plain = weights(world, "models/sft")
    set_params(world, "sft", {"packing": True})

    assert run(world, "sft") == 0
    packed = weights(world, "models/sft")
    assert not same(plain, packed)
    for name, weight in plain.items():
        torch.testing.assert_close(packed[name], weight, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("stage", "curve"), [("reward@r1", "loss"), ("ppo@r1", "value/loss")], ids=["reward", "ppo"]
)
def test_packed_rows_train_as_padded_ones_and_to_the_same_bytes_after_a_break(
    world: Path, stage: str, curve: str, monkeypatch: pytest.MonkeyPatch
):
    plain = history(world, stage)
    set_params(world, stage.partition("@")[0], {"packing": True})
    forget(world, stage)

    assert run(world, stage) == 0

    found = history(world, stage)
    assert found != plain
    for before, packed in zip(plain, found, strict=True):
        assert float(packed[curve]) == pytest.approx(float(before[curve]), rel=2e-3)
    assert_resumes(world, stage, monkeypatch)


@pytest.mark.long
def test_recomputed_layers_train_the_same_bytes(tmp_path: Path):
    """All of them, manifests included; each stage does run its first layer more often."""
    stage_world.build(tmp_path, layers=2)
    trained = ("sft", "reward@r1", "ppo@r1")
    before = {stage: digest(tmp_path, stage) for stage in trained}
    for stage in trained:
        plain = runs_of_attention(tmp_path, stage)
        set_params(tmp_path, stage.partition("@")[0], {"recompute_layers": True})
        assert runs_of_attention(tmp_path, stage) > plain
        assert digest(tmp_path, stage) == before[stage]


def runs_of_attention(root: Path, stage: str) -> int:
    """How often a stage runs any layer's attention when it starts from nothing."""
    runs = 0

    def count(module: torch.nn.Module, *_: object) -> None:
        nonlocal runs
        runs += type(module).__name__ == "LlamaAttention"

    forget(root, stage)
    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        assert run(root, stage) == 0
    finally:
        hook.remove()
    return runs


def test_held_out_demonstrations_are_measured_and_change_no_byte_of_what_is_trained(
    world: Path,
) -> None:
    """Training on the other side alone gives the same weights; the base's loss comes first."""
    path = world / "data/prepared/demonstrations.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if split_of(json.loads(line)["prompt"], heldout_fraction=0.3, salt="demonstrations")
        == "train"
    ]
    assert 0 < len(kept) < len(lines)
    set_params(world, "sft", {"heldout_fraction": 0.3})
    forget(world, "sft")
    assert run(world, "sft") == 0
    measured = (world / "models/sft/model.safetensors").read_bytes()
    metrics = json.loads((world / "results/sft/metrics.json").read_text())
    assert metrics["demonstrations"] == len(kept)
    assert metrics["heldout"]["demonstrations"] == len(lines) - len(kept)
    assert metrics["heldout"]["sft"] < metrics["heldout"]["base"]
    manifest = json.loads((world / "models/sft/manifest.json").read_text())
    assert manifest["params"]["sft"]["heldout_fraction"] == 0.3

    set_params(world, "sft", {"heldout_fraction": 0.0})
    path.write_text("".join(kept))
    forget(world, "sft")
    assert run(world, "sft") == 0
    assert (world / "models/sft/model.safetensors").read_bytes() == measured
    assert "heldout" not in json.loads((world / "results/sft/metrics.json").read_text())
    manifest = json.loads((world / "models/sft/manifest.json").read_text())
    assert "heldout_fraction" not in manifest["params"]["sft"]


def test_sft_with_an_adapter_publishes_base_plus_adapter_as_peft_reads_it(world: Path):
    from peft import PeftModel

    set_params(world, "sft", {"lora": LORA})
    assert run(world, "sft") == 0

    base = AutoModelForCausalLM.from_pretrained(world / "models/base")
    ids = torch.arange(5, 25).reshape(2, 10)
    before = base(ids).logits.detach()
    adapted = PeftModel.from_pretrained(base, str(world / "models/sft/adapter")).eval()
    merged = AutoModelForCausalLM.from_pretrained(world / "models/sft")
    torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, rtol=0, atol=1e-5)
    assert (merged(ids).logits - before).abs().max() > 1e-3


def own_score(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """The normalised score of a row without padding, by transformers alone."""
    config = model.config
    raw = model(ids).logits[0, 0].item()
    return (raw - config.score_mean) / config.score_std


def test_an_ensemble_with_adapters_is_published_whole_and_scores_as_its_members_say(world: Path):
    stage = "reward@r1"
    set_params(world, "reward", {"ensemble": 3, "ensemble_k": 0.5, "lora": LORA})
    forget(world, stage)
    assert run(world, stage) == 0

    folder = world / "models/rounds/r1/reward"
    places = [folder, folder / "member_2", folder / "member_3"]
    assert all((place / "adapter/adapter_model.safetensors").is_file() for place in places)
    listed = json.loads((folder / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "member_2/model.safetensors", "member_3/model.safetensors"} <= set(
        listed
    )
    verify_files(folder, listed)
    members = [AutoModelForSequenceClassification.from_pretrained(place).eval() for place in places]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("where is order 12 ?", return_tensors="pt")["input_ids"]
    scores = [own_score(member, ids) for member in members]
    assert len({round(score, 6) for score in scores}) == 3

    with torch.no_grad():
        joined = load_scorer(folder, torch.device("cpu"))(
            ids, torch.ones_like(ids, dtype=torch.bool)
        )
    wanted = statistics.fmean(scores) - 0.5 * statistics.pstdev(scores)
    assert joined.item() == pytest.approx(wanted, abs=1e-5)
    metrics = json.loads((world / "results/reward/r1/metrics.json").read_text())
    assert metrics["disagreement"] > 0
    columns = history(world, stage)[0]
    assert {"loss", "member_2/loss", "member_3/loss"} <= set(columns)


def assert_resumes(root: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM after its second step, and a second run, give the outputs that are there now."""
    whole = digest(root, stage)
    forget(root, stage)
    interrupt_at(monkeypatch, 2)
    assert run(root, stage) == 143
    monkeypatch.undo()
    assert run(root, stage) == 0
    assert digest(root, stage) == whole


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


def test_a_reward_model_may_train_on_the_newest_preferences_alone(world: Path):
    path = world / "data/rounds/r1/preferences/train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    older = [row | {"round": "r0"} if number < 10 else row for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in older))
    pairs = []
    for choice in ("all", "newest"):
        set_params(world, "reward", {"preferences": choice})
        assert run(world, "reward@r1") == 0
        metrics = json.loads((world / "results/reward/r1/metrics.json").read_text())
        pairs.append(metrics["pairs"])
    assert pairs == [len(rows), len(rows) - 10]


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
