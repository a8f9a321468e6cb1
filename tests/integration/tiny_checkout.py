"""A checkout of the repository with tiny parameters, its commands, and all that stages write."""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stage_world import copy_tiny_repository, environment

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class World:
    """A checkout of the repository, and the environment in which its commands run."""

    root: Path
    environment: dict[str, str]

    def run(self, *command: str, expect: int | None = 0) -> str:
        """What a command writes, stdout and stderr together."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert expect is None or done.returncode == expect, done.stdout
        return done.stdout

    def dvc(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "dvc", *arguments)

    def git(self, *arguments: str) -> str:
        return self.run("git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments)

    def json(self, path: str) -> Any:
        return json.loads((self.root / path).read_text(encoding="utf-8"))


@pytest.fixture(name="unrun", scope="session")
def unrun_fixture(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The repository as a fresh clone would have it, with tiny parameters."""
    folder = tmp_path_factory.mktemp("pipeline")
    root = folder / "main"
    copy_tiny_repository(root, rounds=2)
    world = World(root, environment(folder))
    world.git("init", "--quiet", "--initial-branch=main")
    world.git("add", "--all")
    world.git("commit", "--quiet", "-m", "tiny")
    return world


def outputs(root: Path) -> dict[str, str]:
    """Path -> sha256 of everything that the stages have written."""
    folders = ("data/prepared", "data/rounds", "models", "results", "reports")
    files = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in ("summary.json", "run.html", ".gitignore")
    }
