"""Every stage that trains or runs a model in bfloat16, on a CPU: four families and the embedded."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlhf.compute import Compute
from tasks import evaluate
from tests import stage_world
from tests.stage_world import run, set_params

FAMILIES = {
    "llama": {},
    "qwen2": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1100},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16},
}
LORA = {"rank": 2, "alpha": 4}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world in float32, with held-out prompts and no preferences before round 1."""
    root = tmp_path_factory.mktemp("bfloat16") / "world"
    stage_world.build(root)
    prompts = root / "data/prepared/prompts"
    rows = (prompts / "train.jsonl").read_text().splitlines(keepends=True)
    (prompts / "heldout.jsonl").write_text("".join(rows[:16]))
    (root / "data/prepared/preferences").mkdir()
    for split in ("train", "heldout"):
        (root / f"data/prepared/preferences/{split}.jsonl").touch()
    set_params(root, "run", {"precision": "bfloat16"})
    set_params(root, "sample", {"pairs": 12})
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def write_model(root: Path, family: str) -> None:
    """A random model with large logits, as `base.model`."""
    tokenizer = AutoTokenizer.from_pretrained(root / "models/base")
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 1100, "initializer_range": 0.3, "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    config = AutoConfig.for_model(family, **sizes | FAMILIES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / "mine")
    tokenizer.save_pretrained(root / "mine")
    set_params(root, "base", {"model": "mine"})


def run_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("base", "sft", "sample@r1", "reward@r1", "ppo@r1"):
        stage_world.forget(root, stage) if stage in stage_world.OUTPUTS else None
        assert run(root, stage) == 0, stage
    monkeypatch.chdir(root)
    monkeypatch.setenv("RLHF_SHIPPER", "driver")
    monkeypatch.setenv("RLHF_EXECUTION", "tiny")
    assert evaluate.main(["--policy", "sft"]) == 0
    assert evaluate.main(["--round", "r1"]) == 0


def weights(root: Path, folder: str) -> dict[str, torch.Tensor]:
    """Of one file or several."""
    files = (root / folder).glob("model*.safetensors")
    return {name: weight for file in files for name, weight in load_file(file).items()}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_runs_and_writes_float32(
    world: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    write_model(world, family)
    run_all(world, monkeypatch)
    check_weights_and_numbers(world)


@pytest.mark.long
def test_the_embedded_model_is_pre_trained_and_goes_through_every_stage(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = weights(world, "models/base")
    run_all(world, monkeypatch)
    check_weights_and_numbers(world)
    # Of products in tiles nothing is rounded but the factors, and of so small a model none is made.
    rounded = not Compute(torch.device("cpu"), "bfloat16").in_tiles
    for name, half in weights(world, "models/base").items():
        assert torch.equal(half, single[name]) != rounded
        assert not torch.equal(half, half.bfloat16().float())


def check_weights_and_numbers(world: Path) -> None:
    folders = ["models/base", "models/sft", "models/rounds/r1/reward", "models/rounds/r1/policy"]
    made = [weights(world, folder) for folder in folders]
    for tensors in made:
        assert {value.dtype for value in tensors.values()} == {torch.float32}
    for one, other in ((made[0], made[1]), (made[1], made[3])):
        assert any(not torch.equal(one[name], other[name]) for name in one)
        # Steps far below those of bfloat16 are kept, for masters are float32.
        assert any(not torch.equal(other[name], other[name].bfloat16().float()) for name in other)
    metrics = json.loads((world / "results/evaluate/r1/metrics.json").read_text())
    assert math.isfinite(metrics["kl"]["mean"])
    assert math.isfinite(metrics["proxy"]["mean"])


@pytest.mark.long
def test_adapters_are_merged_into_the_full_weights(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of rank 2 and nothing else: the base's digits beyond bfloat16 are all there."""
    write_model(world, "qwen2")
    for section in ("sft", "reward", "ppo"):
        set_params(world, section, {"lora": LORA})
    run_all(world, monkeypatch)
    pairs = (("base", "sft"), ("sft", "rounds/r1/policy"), ("sft", "rounds/r1/reward"))
    for before, after in pairs:
        old, new = weights(world, f"models/{before}"), weights(world, f"models/{after}")
        changes = [new[name] - old[name] for name in old if "_proj.weight" in name]
        assert len(changes) == 14
        for change in changes:
            sizes = torch.linalg.svdvals(change.double())
            assert sizes[1] > 1e-6
            assert sizes[2] < 1e-3 * sizes[0]
        kept = [name for name in old if "_proj.weight" not in name and name in new]
        assert all(torch.equal(old[name], new[name]) for name in kept)
