"""A checkout of this repository with tiny params, in which DVC and the drivers run for real."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruamel.yaml import YAML

from tests.stage_world import copy_repository, make_tiny

OUTPUTS = ("data/prepared", "data/rounds", "models", "results", "reports")
TIMES = ("summary.json", "run.html")
"""Files below `reports` that hold times; they are no outputs of a stage."""


def check_out(root: Path, *, stages: Sequence[str] | None = None, steps: int | None = None) -> Path:
    """The files of this repository, with one tiny round and no output.

    Args:
        root: where to.
        stages: those that dvc.yaml keeps; all by default.
        steps: of pre-training, where they are to be others.
    """
    copy_repository(root, without=("tests/", "docs/", "benchmarks/"))
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    make_tiny(params, rounds=1)
    if steps is not None:
        params["base"]["embedded"]["steps"] = steps
    yaml.dump(params, root / "params.yaml")
    if stages is not None:
        _keep_stages(root / "dvc.yaml", stages)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "tiny"]):
        names = ["-c", "user.name=torture", "-c", "user.email=torture@localhost"]
        subprocess.run(["git", *names, *command], cwd=root, check=True)
    return root


def fingerprint(root: Path) -> dict[str, str]:
    """Path -> sha256 of `dvc.lock` and of everything that the stages have written."""
    files = [path for folder in OUTPUTS for path in (root / folder).rglob("*") if path.is_file()]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [root / "dvc.lock", *files]
        if path.is_file() and path.name not in (*TIMES, ".gitignore")
    }


def differing(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The first paths that are not alike."""
    paths = sorted({*found, *expected})
    return [path for path in paths if found.get(path) != expected.get(path)][:3]


def processes(root: Path) -> set[int]:
    """The processes that work in `root`; zombies have no folder."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cwd").readlink() == root:
                found.add(int(folder.name))
        except OSError:  # It ended meanwhile.
            continue
    return found


def _keep_stages(path: Path, stages: Sequence[str]) -> None:
    """Remove the other stages, and the metrics and plots that they write."""
    yaml = YAML()
    pipeline = yaml.load(path)
    pipeline["stages"] = {name: pipeline["stages"][name] for name in stages}
    for section in ("metrics", "plots"):
        pipeline.pop(section, None)
    yaml.dump(pipeline, path)
