"""A folder with params.yaml and one's own files, in which the first stages run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from preferences.reader import read_rows
from preferences.schemas import PROMPTS
from tasks.own_data.preflight import check_inputs
from tasks.own_data.rows import own_split
from tasks.params.loading import ParamsError, load_params
from tasks.params.prepare import FilesParams

ROOT = Path(__file__).resolve().parents[2]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


FILES = FilesParams(prompts="p", demonstrations="d")


class Place:
    """A folder with params.yaml and one's own files."""

    def __init__(self, root: Path):
        self.root = root
        self.values = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
        self.values["run"]["threads"] = 1
        self.values["prepare"]["files"] = {
            "prompts": "own/prompts.jsonl",
            "demonstrations": "own/demonstrations.jsonl",
            "corpus": "own/corpus.jsonl",
        }
        self.values["sft"] |= {"batch_size": 8}
        self.values["sample"]["pairs"] = 20
        self.values["label"] = {"annotators": "people"}
        prompts = [
            {"prompt_id": f"p{n}", "prompt": [{"role": "user", "content": f"w{n} w{n // 2}"}]}
            for n in range(50)
        ]
        write_rows(root / "own/prompts.jsonl", prompts)
        write_rows(root / "own/corpus.jsonl", [{"text": "w1 w2 w3"}])
        answered = [{**row, "response": f"w{n} w1 w2"} for n, row in enumerate(prompts)]
        write_rows(root / "own/demonstrations.jsonl", answered)

    def save(self) -> Path:
        path = self.root / "params.yaml"
        YAML().dump(self.values, path)
        return path

    def run(self, stage: str) -> tuple[int, str]:
        """Exit code and stderr."""
        self.save()
        done = subprocess.run(
            [sys.executable, "-m", f"tasks.{stage}"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RLHF_SHIPPER": "driver"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    def made(self) -> list[str]:
        """Everything but what was there and the working folder."""
        ours = ("own", "model", "params.yaml", ".work")
        return sorted(path.name for path in self.root.iterdir() if path.name not in ours)

    def preflight(self) -> list[str]:
        path = self.save()
        with pytest.raises(ParamsError) as error:
            check_inputs(load_params(path), self.root)
        return [line.removeprefix(f"{path}: ") for line in str(error.value).splitlines()]


def asked_in(place: Place, split: str) -> list[str]:
    """What the prompts of a split ask, as plain text."""
    rows = read_rows(place.root / "own/prompts.jsonl", PROMPTS)
    prompts = [row["prompt"] for row in rows if own_split(row["prompt"], FILES) == split]
    return [str(messages[0]["content"]) for messages in prompts]


def pairs(prompts: list[str]) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "chosen": "w1", "rejected": "w2"} for prompt in prompts]


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
