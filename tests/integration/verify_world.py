"""A repository whose commit has the dvc.lock and the numbers of a run, and `make verify` in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.reporting.verification import outputs_digest
from tasks.workspace.dvc_lockfile import read_entries
from tests.git_command import git

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
"""On a loaded machine."""
PIPELINE = """\
stages:
  baseline:
    cmd: exec python stage.py baseline
    deps: [stage.py]
    params: [run]
    outs: [results/baseline]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py evaluate@${key}
      deps: [results/baseline]
      outs: ["results/evaluate/${key}"]
"""
PARAMS = "run: {seed: 5}\nrounds:\n  r1: {policy: models/sft}\n"
STAGE = """\
import ctypes, json, os, signal, sys, time
from pathlib import Path
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as tasks.running.stage does
name, wanted = sys.argv[1], os.environ.get("WANTED", "")
work = Path(".work") / name
work.mkdir(parents=True, exist_ok=True)
def end(status, code, message):
    outcome = {"stage": name, "status": status, "code": code, "message": message,
               "ended_ms": time.time_ns() // 1_000_000, "execution": os.environ["RLHF_EXECUTION"],
               "environment": {"python": "3.11.98" if wanted == "other" else "3.11.7",
                               "threads": 2, "torch": "2.13.0"}}
    (work / "outcome.json").write_text(json.dumps(outcome))
    sys.exit(code)
if wanted == "hang":
    (work / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.1)
if wanted == "blocked":
    end("blocked", 4, "3 contradictory pairs")
folder = Path("results") / name.replace("@", "/")
folder.mkdir(parents=True)
# Elsewhere only the second stage has other numbers.
mean = 8.07 if wanted == "other" and name != "baseline" else 8.7
gold = {"mean": mean, "low": mean - 0.25, "high": mean + 0.25, "n": 8}
(folder / "metrics.json").write_text(json.dumps({"policy": name, "gold": gold}))
end("done", 0, "")
"""


def environment(**more: str) -> dict[str, str]:
    private = ("MLFLOW_", "DVC_", "GIT_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(private)}
    own = {"PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1", "SHELL": "/bin/sh"}
    return kept | own | more


def commit_all(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "recorded")
    return git(root, "rev-parse", "--short=7", "HEAD")


@pytest.fixture(name="recorded", scope="session")
def recorded_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose commit has the dvc.lock, the numbers and the environment of a run."""
    root = tmp_path_factory.mktemp("verify") / "root"
    root.mkdir()
    (root / "params.yaml").write_text(PARAMS)
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "stage.py").write_text(STAGE)
    (root / ".gitignore").write_text(".work\nresults\n")
    (root / "metrics/rounds").mkdir(parents=True)
    for policy in ("sft", "r1"):
        (root / f"metrics/rounds/{policy}.json").write_text('{"gold": 8.7}')
    git(root, "init", "--quiet")
    dvc = [sys.executable, "-m", "dvc"]
    run = environment(RLHF_EXECUTION="recorded")
    run["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{run['PATH']}"
    subprocess.run([*dvc, "init", "--quiet"], cwd=root, check=True, env=run)
    subprocess.run([*dvc, "repro", "--quiet"], cwd=root, check=True, env=run)
    made_on = json.loads((root / ".work/baseline/outcome.json").read_text())["environment"]
    (root / "docs").mkdir()
    record = {"environment": made_on, "outputs": outputs_digest(read_entries(root))}
    (root / "docs/default-run.json").write_text(json.dumps(record))
    commit_all(root)
    return root


@pytest.fixture(name="root")
def root_fixture(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "root"))


def start(root: Path, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.verify", *arguments],
        cwd=root,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def verify(root: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    process = start(root, *arguments, **more)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err


def contents(root: Path) -> dict[str, bytes]:
    """Everything in the checkout, DVC's and git's own files included, but for `.work`."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    # git status refreshes its index: the times of files, no content.
    return {name: v for name, v in found.items() if not name.startswith((".work/", ".git/index"))}


def change_lock(root: Path, stage: str) -> None:
    """Give the first output of a stage another hash in dvc.lock."""
    yaml = YAML()
    lock = yaml.load(root / "dvc.lock")
    lock["stages"][stage]["outs"][0]["md5"] = "0" * 32 + ".dir"
    yaml.dump(lock, root / "dvc.lock")
