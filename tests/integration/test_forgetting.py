"""Forgetting, driven for real: the tiny pipeline under DVC, and what it writes afterwards."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage_world import copy_tiny_repository, environment

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One round, trained and committed."""
    root = tmp_path_factory.mktemp("forgetting") / "repository"
    copy_tiny_repository(root, rounds=1)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "Start"]):
        subprocess.run(["git", *command], cwd=root, check=True, env=environment(root.parent))
    (root / ".dvc/config.local").unlink(missing_ok=True)
    repro(root)
    subprocess.run(["git", "add", "dvc.lock"], cwd=root, check=True)
    subprocess.run(
        ["git", "commit", "-qm", "Run"], cwd=root, check=True, env=environment(root.parent)
    )
    return root


def run(root: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=root, env=environment(root.parent), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repro(root: Path) -> list[str]:
    """The stages that ran."""
    return re.findall(r"Running stage '([^']+)'", run(root, "dvc", "repro", "ppo@r1"))


def stages(shown: str, words: str) -> list[str]:
    """What `forget` said about stages."""
    (line,) = [line for line in shown.splitlines() if line.startswith(words)]
    return line.partition(": ")[2].split(", ")


def traces(root: Path, pattern: str) -> list[str]:
    """Files below the repository, git aside, that match."""
    search = re.compile(pattern.encode())
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts and "tests" not in path.parts
        if path.suffix not in (".py", ".pyc") and search.search(path.read_bytes())
    ]


def test_exactly_the_named_stages_run_and_nothing_of_it_comes_back(root: Path) -> None:
    before = (root / "models/rounds/r1/policy/model.safetensors").read_bytes()
    judged = (root / "data/rounds/r1/judgments.jsonl").read_text().count('"sim-1"')
    assert judged > 0

    shown = run(root, "tasks.forget", "--annotator", "sim-1", "--yes")

    assert f"  data/rounds/r1/judgments.jsonl: {judged}\n" in shown
    assert traces(root, '"sim-1"') == []
    named = stages(shown, "the next run makes anew")
    assert named == ["label@r1", "validate@r1", "reward@r1", "ppo@r1"]
    assert repro(root) == named
    assert traces(root, '"sim-1"') == []
    assert "no model was formed by it" in run(root, "tasks.lineage", "--annotator", "sim-1")
    assert (root / "models/rounds/r1/policy/model.safetensors").read_bytes() != before
    assert repro(root) == []

    # A person's data in the texts: everything is made anew.
    prompt = json.loads((root / "data/prepared/prompts/train.jsonl").read_text().splitlines()[0])
    pattern = re.escape(prompt["prompt"])
    shown = run(root, "tasks.forget", "--matching", pattern, "--yes")
    assert traces(root, pattern) == []
    named = stages(shown, "the next run makes anew")
    assert named[0] == "prepare"
    assert repro(root) == named
    assert traces(root, pattern) == []
