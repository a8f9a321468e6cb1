"""The world of tests/stage_world.py for tests of options, and what its stages have made."""

import csv
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from tasks.running.staging import model_hash
from tests import stage_world
from tests.stage_world import digest, forget, interrupt_at, run

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(name="built", scope="module")
def built_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("options") / "world"
    stage_world.build(root)
    return root


@pytest.fixture(name="world")
def world_fixture(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def history(root: Path, stage: str) -> list[dict[str, str]]:
    section, _, key = stage.partition("@")
    with (root / "results" / section / key / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def weights(root: Path, folder: str) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(root / folder).state_dict()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def assert_resumes(root: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SIGTERM after its second step, and a second run, give the outputs that are there now."""
    whole = digest(root, stage)
    forget(root, stage)
    interrupt_at(monkeypatch, 2)
    assert run(root, stage) == 143
    monkeypatch.undo()
    assert run(root, stage) == 0
    assert digest(root, stage) == whole


def by_sft(world: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[torch.Tensor]:
    """Token ids of SFT's own responses among the pairs of the round, each with its prompt."""
    sft = model_hash(world / "models/sft")
    lines = (world / "data/rounds/r1/comparisons.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        for side in "ab":
            if row[f"policy_{side}"] == sft:
                text = (
                    f"<|user|>{row['prompt']}<|end|><|assistant|>{row[f'response_{side}']}<|end|>"
                )
                yield tokenizer(text, return_tensors="pt")["input_ids"]
