"""A stage whose lengths were raised after `base` had run refuses what its model cannot hold."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tasks import evaluate
from tests import stage_world
from tests.stage_world import forget, run, set_params

POSITIONS = 1100


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with a GPT-2 as its base model, up to the reward model of round 1."""
    root = tmp_path_factory.mktemp("lengths") / "world"
    stage_world.build(root)
    prepared = root / "data/prepared"
    shutil.copy(prepared / "prompts/train.jsonl", prepared / "prompts/heldout.jsonl")
    (prepared / "preferences").mkdir()
    for split in ("train", "heldout"):
        (prepared / f"preferences/{split}.jsonl").touch()
    tokenizer = AutoTokenizer.from_pretrained(root / "models/base")
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=POSITIONS,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(root / "mine")
    tokenizer.save_pretrained(root / "mine")
    set_params(root, "base", {"model": "mine"})
    set_params(root, "sample", {"pairs": 12})
    for stage in ("base", "sft", "sample@r1", "reward@r1"):
        if stage in stage_world.OUTPUTS:
            forget(root, stage)
        assert run(root, stage) == 0, stage
    return root


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "raised"),
    [
        ("sft", {"max_tokens": POSITIONS + 1}),
        ("reward@r1", {"max_tokens": POSITIONS + 1}),
        ("sample@r1", {"max_prompt_tokens": POSITIONS}),
        ("ppo@r1", {"max_prompt_tokens": POSITIONS}),
        ("evaluate", {"max_prompt_tokens": POSITIONS}),
    ],
)
def test_a_stage_refuses_rows_longer_than_the_table_of_its_model(
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    stage: str,
    raised: Mapping[str, Any],
) -> None:
    section = stage.partition("@")[0]
    before = (world / "params.yaml").read_bytes()
    set_params(world, section, raised)
    try:
        if section == "evaluate":
            monkeypatch.chdir(world)
            monkeypatch.setenv("RLHF_SHIPPER", "driver")
            monkeypatch.setenv("RLHF_EXECUTION", "tiny")
            code = evaluate.main(["--policy", "sft"])
        else:
            code = run(world, stage)
    finally:
        (world / "params.yaml").write_bytes(before)

    assert code == 2
    said = capfd.readouterr().err
    assert f"the model has positions for {POSITIONS} tokens, and {section}.max_" in said


@pytest.mark.long
def test_one_prompt_is_too_few_to_evaluate_on(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The others may have been left out as too long, or withdrawn."""
    heldout = world / "data/prepared/prompts/heldout.jsonl"
    before = heldout.read_bytes()
    heldout.write_bytes(before.splitlines(keepends=True)[0])
    monkeypatch.chdir(world)
    monkeypatch.setenv("RLHF_SHIPPER", "driver")
    monkeypatch.setenv("RLHF_EXECUTION", "tiny")
    try:
        assert evaluate.main(["--policy", "sft"]) == 2
    finally:
        heldout.write_bytes(before)

    said = capfd.readouterr().err
    assert "data/prepared/prompts/heldout.jsonl: 1 of 1 prompts has at most 96 tokens" in said
    assert "(evaluate.max_prompt_tokens); expected 2 or more" in said
    assert "Traceback" not in said


@pytest.mark.long
@pytest.mark.parametrize("trains", [True, False])
def test_a_held_out_pair_that_the_model_cannot_read_is_left_out(
    world: Path, capfd: pytest.CaptureFixture[str], trains: bool
) -> None:
    """Positions end before it: scoring it was an IndexError, after all training."""
    heldout = world / "data/rounds/r1/preferences/heldout.jsonl"
    before, params = heldout.read_bytes(), (world / "params.yaml").read_bytes()
    row = json.loads(before.splitlines()[0]) | {"pair_id": "long", "chosen": "no " * POSITIONS}
    heldout.write_bytes(before + json.dumps(row).encode() + b"\n")
    if not trains:
        shutil.copytree(world / "models/rounds/r1/reward", world / "theirs")
        set_params(world, "reward", {"model": "theirs"})
    try:
        assert run(world, "reward@r1") == 0
    finally:
        heldout.write_bytes(before)
        (world / "params.yaml").write_bytes(params)

    count = len(before.splitlines()) + 1
    said = f"1 of {count} pairs to ask the reward model about left out"
    assert said in capfd.readouterr().err
    found = json.loads((world / "results/reward/r1/metrics.json").read_text())
    assert found["heldout_too_long"] == 1
    assert found["labels"]["accuracy"]["n"] <= count - 1
