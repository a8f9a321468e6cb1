"""Stages `reward` and `ppo` with a reward model of others, and with a function in its place."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from rlhf.classifiers import TextEncoder
from rlhf.ensembles import load_scorer
from rlhf.models import load_tokenizer
from tasks.running.staging import verify_model
from tests import stage_world, tiny
from tests.stage_world import digest, run, set_params

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("others") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def metrics(root: Path, stage: str) -> dict[str, object]:
    return json.loads((root / f"results/{stage}/r1/metrics.json").read_text())


def test_a_model_with_its_own_words_scores_through_text_and_no_value_model_starts_from_it(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny.classifier().save_pretrained(world / "others")
    tiny.tokenizer().save_pretrained(world / "others")
    set_params(world, "reward", {"model": "others"})
    assert run(world, "reward@r1") == 0
    folder = world / "models/rounds/r1/reward"
    verify_model(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["reads_text"] is True
    assert config["score_std"] > 0
    assert metrics(world, "reward")["heldout_accuracy"] is not None
    assert "too_long" not in metrics(world, "reward")
    made, theirs = (load_scorer(path, torch.device("cpu")) for path in (folder, world / "others"))
    for one, other in zip(made.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)

    assert run(world, "ppo@r1") == 2
    said = capfd.readouterr().err
    assert "ppo.value_init: reward, but others (reward.model) has a tokenizer or" in said
    set_params(world, "ppo", {"value_init": "zero"})
    assert run(world, "ppo@r1") == 0
    with (world / "results/ppo/r1/history.csv").open() as file:
        scores = [float(row["objective/score"]) for row in csv.DictReader(file)]
    assert len(set(scores)) == len(scores) == stage_world.STEPS["ppo@r1"]


def test_a_probe_asks_nothing_that_a_model_of_others_cannot_read(world: Path) -> None:
    """A response said twice was longer than the positions, though no pair and no rollout is."""
    tiny.tokenizer().save_pretrained(world / "others")
    encoder = TextEncoder(tiny.tokenizer())
    rounds = world / "data/rounds/r1"
    paths = [rounds / "comparisons.jsonl", *(rounds / "preferences").glob("*.jsonl")]
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    sides = [
        (row["prompt"], row[side])
        for row in rows
        for side in ("response_a", "response_b", "chosen", "rejected")
        if side in row
    ]
    most = max(len(encoder.encode(*texts, finished=True)) for texts in sides)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tiny.tokenizer()), hidden_size=16, num_hidden_layers=1, num_labels=1,
        num_attention_heads=2, intermediate_size=16, max_position_embeddings=most,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(world / "others")
    set_params(world, "reward", {"model": "others"})
    assert run(world, "reward@r1") == 0
    assert "heldout_too_long" not in metrics(world, "reward")


def test_a_model_with_the_policys_words_scores_its_ids_and_gives_a_value_model(world: Path) -> None:
    tokenizer = load_tokenizer(world / "models/sft")
    shutil.copytree(world / "models/rounds/r1/reward", world / "others")
    before = digest(world, "ppo@r1")
    set_params(world, "reward", {"model": "others"})
    assert run(world, "reward@r1") == 0
    config = json.loads((world / "models/rounds/r1/reward/config.json").read_text())
    assert "reads_text" not in config
    assert load_tokenizer(world / "models/rounds/r1/reward").get_vocab() == tokenizer.get_vocab()
    assert run(world, "ppo@r1") == 0
    # The weights and the normaliser are those of the world's own reward model, so PPO is the same.
    weights = world / "models/rounds/r1/policy/model.safetensors"
    again = weights.read_bytes()
    set_params(world, "reward", {"model": None})
    assert run(world, "reward@r1") == 0
    assert run(world, "ppo@r1") == 0
    assert weights.read_bytes() == again
    assert digest(world, "ppo@r1") == before


def test_a_function_alone_needs_no_reward_model(world: Path) -> None:
    (world / "check.py").write_text(
        "def score(prompts, responses):\n"
        "    assert all(isinstance(p, str) and '<|' not in p for p in prompts)\n"
        "    return [float(len(response)) for response in responses]\n"
    )
    rewards = {"learned": 0.0, "function": "check.py:score", "function_weight": 0.5}
    set_params(world, "reward", {"model": "none"})
    set_params(world, "ppo", {"rewards": rewards, "value_init": "zero"})
    assert run(world, "reward@r1") == 0
    assert not (world / "models/rounds/r1/reward/config.json").exists()
    assert run(world, "ppo@r1") == 0
    asked = (world / "data/prepared/prompts/train.jsonl").read_text().splitlines()
    prompts = {json.loads(line)["prompt"] for line in asked}
    samples = (world / "results/ppo/r1/samples.jsonl").read_text().splitlines()
    for row in map(json.loads, samples):
        assert row["prompt"] in prompts
        assert row["score"] == pytest.approx(0.5 * len(row["response"]), abs=1e-4)
