"""A git and DVC repository with two small stages of its own, and the driver that runs in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.small_repository import PARAMS, commit

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
"""On a loaded machine."""
PIPELINE = """\
stages:
  baseline:
    cmd: exec python stage.py baseline
    deps: [stage.py, wanted]
    params: [run]
    outs: [results/baseline]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py evaluate@${key}
      deps: [results/baseline]
      params: [ppo]
      outs: ["results/evaluate/${key}"]
"""
STAGE = """\
import ctypes, json, os, signal, sys, time
from pathlib import Path
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as tasks.running.stage does
name = sys.argv[1]
wanted = Path("wanted").read_text().strip()
work = Path(".work") / name
work.mkdir(parents=True, exist_ok=True)
def end(status, code, message):
    outcome = {"stage": name, "status": status, "code": code, "message": message, "seconds": 0.5,
               "peak_rss_bytes": 1000, "ended_ms": time.time_ns() // 1_000_000,
               "execution": os.environ["RLHF_EXECUTION"]}
    (work / "outcome.json").write_text(json.dumps(outcome))
    sys.exit(code)
def interrupted(*_):
    # The step at hand and a checkpoint take a while.
    time.sleep({"slow": 4, "slower": 600}.get(wanted, 0.5))
    end("interrupted", 143, "checkpoint kept")
signal.signal(signal.SIGTERM, interrupted)
signal.signal(signal.SIGINT, interrupted)
assert os.environ["RLHF_SHIPPER"] == "driver"
if wanted in ("hang", "slow", "slower"):
    (work / "pid").write_text(str(os.getpid()))
    while True:  # one long sleep could begin just after a signal, and sleep on
        time.sleep(0.1)
if wanted == "change" and name != "baseline":
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("seed: 5", "seed: 6"))
if wanted == "edit" and name != "baseline":
    Path("wanted").write_text("success")
if wanted == "blocked" and name != "baseline" or wanted == f"blocked {name}":
    end("blocked", 4, "3 contradictory pairs")
if wanted == f"waiting {name}":
    end("waiting", 5, "for 3 judgments")
if wanted == "kill":
    sys.path.insert(0, os.environ["PYTHONPATH"])
    from tasks.workspace.work_folder import note_running
    note_running(work, name, os.environ["RLHF_EXECUTION"])
    os.kill(os.getpid(), signal.SIGKILL)
if wanted == "crash":
    sys.exit(1)
if wanted == "note":
    sys.path.insert(0, os.environ["PYTHONPATH"])
    from tasks.running.provenance import entry_digest, note_made_from
    from tasks.running.snapshot import take_snapshot
    used, before = take_snapshot(Path.cwd(), name, ("run", "ppo")), entry_digest(Path.cwd(), name)
folder = Path("results") / name.replace("@", "/")
folder.mkdir(parents=True)
gold = {"mean": 4.5 if name == "baseline" else 8.25, "low": 4.0, "high": 9.0, "n": 8}
(folder / "metrics.json").write_text(json.dumps({"policy": name, "gold": gold}))
if wanted.startswith("large"):
    (folder / "model.safetensors").write_bytes(wanted.encode().ljust(2**26))
if wanted == "note":
    note_made_from(Path.cwd(), used, before)
end("done", 0, "")
"""


@pytest.fixture(name="template", scope="session")
def template_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "stage.py").write_text(STAGE)
    (folder / "wanted").write_text("success")
    (folder / "params").mkdir()
    (folder / "params" / "no_kl.yaml").write_text("ppo: {kl_coef: 0.0}\n")
    (folder / ".gitignore").write_text(".work\nreports\nresults\n")
    commit(folder, environment())
    return folder


@pytest.fixture(name="root")
def root_fixture(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "root"))


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    # DVC starts stages by the user's shell. This one stays between, unless the command has `exec`.
    shell = os.environ.get("LATE_SHELL", "/bin/sh")
    own = {"PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1", "SHELL": shell}
    return kept | own


def start_driver(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.repro", *arguments],
        cwd=root,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def drive(root: Path, *arguments: str) -> tuple[int, str, str]:
    process = start_driver(root, *arguments)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err
