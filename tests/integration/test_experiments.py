"""A sweep by its command, on a real git and DVC repository with two small stages of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.background import hear_signals
from tests.integration.small_repository import PARAMS, commit

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 600
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
      params: [run, ppo]
      outs: ["results/evaluate/${key}"]
"""
STAGE = """\
import ctypes, json, os, signal, sys, time
from pathlib import Path
from ruamel.yaml import YAML
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as tasks.running.stage does
name, notes = sys.argv[1], Path(os.environ["NOTES"])
params = YAML(typ="safe").load(Path("params.yaml").read_text())
seed, kl_coef = params["run"]["seed"], params["ppo"].get("kl_coef")
work = Path(".work") / name
work.mkdir(parents=True, exist_ok=True)
def end(status, code):
    outcome = {"stage": name, "status": status, "code": code, "message": "", "seconds": 0.5,
               "peak_rss_bytes": 1000, "ended_ms": time.time_ns() // 1_000_000,
               "execution": os.environ["RLHF_EXECUTION"]}
    (work / "outcome.json").write_text(json.dumps(outcome))
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: end("interrupted", 143))
signal.signal(signal.SIGINT, lambda *_: end("interrupted", 143))
while (notes / "hang").exists() and seed == 1 and name != "baseline":
    (notes / "hangs").touch()
    time.sleep(0.1)
if kl_coef == 0.5:
    end("stopped", 3)
if seed == 2 and kl_coef == 0 and name != "baseline":
    end("failed", 1)
folder = Path("results") / name.replace("@", "/")
folder.mkdir(parents=True)
mean = 4.5 if name == "baseline" else 8.0 + seed + (0.25 if kl_coef == 0 else 0)
gold = {"mean": mean, "low": mean - 1, "high": mean + 1, "n": 8}
(folder / "metrics.json").write_text(json.dumps({"policy": name, "gold": gold}))
with (notes / "done").open("a") as file:
    file.write(f"{name} {seed} {kl_coef}\\n")
end("done", 0)
"""
MINE = """\
question: Does it matter?
budget: nothing
seeds: [0, 1]
variants:
  default:
  no_kl:
    ppo: {kl_coef: 0.0}
  stops:
    ppo: {kl_coef: 0.5}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "experiments/params").mkdir(parents=True)
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "stage.py").write_text(STAGE)
    (folder / "experiments/params/mine.yaml").write_text(MINE)
    (folder / ".gitignore").write_text(".work\nreports\nresults\n")
    commit(folder, environment(tmp_path))
    return folder


def environment(notes: Path) -> dict[str, str]:
    private = ("MLFLOW_", "PREFECT_", "RLHF_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(private)}
    own = {"PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1", "NOTES": str(notes)}
    return kept | own | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def start(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", *arguments],
        cwd=root,
        env=environment(root.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hear_signals,
    )


def records(root: Path) -> dict[str, dict]:
    paths = (root / "docs/results/data/mine").glob("*.json")
    return {path.stem: json.loads(path.read_text()) for path in paths}


@pytest.mark.slow
def test_a_sweep_that_was_interrupted_continues_and_repeats_nothing(root: Path):
    notes = root.parent
    (notes / "hang").touch()
    first = start(root, "mine")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (notes / "hangs").exists():
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode != 0
    assert set(records(root)) == {"default-seed0", "no_kl-seed0", "stops-seed0"}

    (notes / "hang").unlink()
    second = start(root, "mine")
    out, _ = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, out

    # Each stage once: the first ones are shared by all variants of a seed.
    assert sorted((notes / "done").read_text().splitlines()) == [
        "baseline 0 None", "baseline 1 None",
        "evaluate@r1 0 0.0", "evaluate@r1 0 None", "evaluate@r1 1 0.0", "evaluate@r1 1 None",
    ]  # fmt: skip
    found = records(root)
    assert found["no_kl-seed1"]["policies"][-1]["gold"]["mean"] == 9.25
    assert {found[name]["state"] for name in ("default-seed0", "no_kl-seed1")} == {"Completed"}
    assert found["stops-seed1"]["state"] == "Stopped"
    page = (root / "docs/results/mine.md").read_text()
    assert "| no_kl | 0: +0.25, 1: +0.25 | +0.25 [+0.25, +0.25] |" in page
    assert "- stops, seed 1: Stopped" in page
    variants = {path.name for path in (root / ".work/variants").glob("mine-*")}
    assert variants == {f"mine-{name}" for name in found}


def test_a_run_without_a_result_is_named_and_ends_it_with_1(root: Path):
    process = start(root, "mine", "--seeds", "2")
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 1
    assert "Incomplete: without a result: mine-no_kl-seed2 (Failed: " in out
    assert set(records(root)) == {"default-seed2", "stops-seed2"}


def test_a_name_that_is_not_there_is_bad_input(root: Path):
    process = start(root, "yours")
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (2, "no experiment 'yours'; there are: mine\n")
