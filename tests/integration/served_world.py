"""A world whose stages get their responses from a server, and one that has the model of SFT."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks import evaluate
from tasks.running.runner import run_stage
from tasks.running.staging import write_json_lines
from tests import stage_world
from tests.completions_server import CompletionsServer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="root", scope="module")
def root_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    stage_world.build(root)
    stage_world.set_params(root, "sample", {"pairs": 12, "against_sft": 0.5})
    for split in ("train", "heldout"):
        folder = root / "data/prepared/preferences"
        folder.mkdir(parents=True, exist_ok=True)
        write_json_lines(folder / f"{split}.jsonl", [])
    prompts = (root / "data/prepared/prompts/train.jsonl").read_text().splitlines()
    for split in ("heldout", "test"):
        (root / f"data/prepared/prompts/{split}.jsonl").write_text("\n".join(prompts[:16]) + "\n")
    return root


@pytest.fixture(name="served")
def served_fixture(root: Path) -> Iterator[CompletionsServer]:
    """One for each test: after an error, requests of the test before may still be under way."""
    server = CompletionsServer(root / "models/sft", "models/sft")
    server.start()
    yield server
    server.shutdown()


@pytest.fixture(name="from_a_server", autouse=True)
def from_a_server_fixture(root: Path) -> None:
    stage_world.set_params(root, "run", {"generation": "server"})


def baseline(root: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> int:
    monkeypatch.chdir(root)
    for name, value in {"RLHF_SHIPPER": "driver", "RLHF_EXECUTION": "t", **environment}.items():
        monkeypatch.setenv(name, value)
    return run_stage(
        "evaluate",
        evaluate.run_baseline,
        name="baseline",
        inputs=evaluate.BASELINE_INPUTS,
        arguments=[],
        errors=evaluate.OUR_ERRORS,
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def outcome(root: Path, stage: str) -> str:
    return str(read(root / f".work/{stage}/outcome.json")["message"])
