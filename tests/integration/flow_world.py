"""A workspace with a small dvc.yaml, whose stages do what tests ask of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.background import hear_signals

ROOT = Path(__file__).resolve().parents[2]

CANCELLABLE = f"""
import logging, signal, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from flows.stages import run_stage
class Cancelled(BaseException): ...
def cancel(*_): raise Cancelled
signal.signal(signal.SIGTERM, cancel)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
"""
"""How a program begins that runs stages as a flow does, and is cancelled by a SIGTERM."""
PIPELINE = """
stages:
  sft:
    cmd: exec python stage.py results/baseline
    deps: [input.txt]
    outs: [results/baseline]
  reward:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py results/reward/${key}
      deps: [results/baseline]
      outs: ["results/reward/${key}"]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py results/evaluate/${key}
      deps: ["results/reward/${key}"]
      outs: ["results/evaluate/${key}"]
"""
STAGE = """
import ctypes, json, os, signal, sys, time
from pathlib import Path
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as tasks.running.stage does
name, out = os.environ["DVC_STAGE"], Path(sys.argv[1])
todo = json.loads(Path("todo.json").read_text()).get(name, {})
tried = Path(f"tried-{name}")
attempt = len(tried.read_text()) if tried.exists() else 0
tried.write_text("x" * (attempt + 1))
if attempt < todo.get("killed", 0):
    os.kill(os.getpid(), signal.SIGKILL)
if "changes" in todo:
    path, text = todo["changes"]
    Path(path).write_text(text)
if "status" in todo:
    work = Path(".work") / name
    work.mkdir(parents=True, exist_ok=True)
    outcome = {"stage": name, "status": todo["status"], "code": todo["code"], "message":
               todo["message"], "seconds": 0.1, "peak_rss_bytes": 1,
               "ended_ms": time.time_ns() // 10**6, "execution": os.environ["RLHF_EXECUTION"]}
    (work / "outcome.json").write_text(json.dumps(outcome))
    sys.exit(todo["code"])
def save(number, _):
    if Path("asked").exists():  # DVC, its driver and the kernel may each send a SIGTERM
        return sys.exit(143) if number == signal.SIGINT else None
    Path("asked").write_text(signal.Signals(number).name)
    time.sleep(todo.get("step", 0.3))  # the step at hand
    Path("checkpoint").write_text("saved")
    print("checkpoint saved", flush=True)
    sys.exit(143)
if todo.get("sleeps"):
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, save)
    Path("pids").write_text(f"{os.getpid()} {os.getppid()}")
    while True:  # one long sleep could begin just after a signal, and sleep on
        time.sleep(0.1)
if "logs" in todo:
    sys.path.insert(0, todo["logs"])
    from tasks.tracking.spool import RunStart, open_spool
    start = RunStart(name, os.environ["RLHF_EXECUTION"], {"lr": 1}, {}, {})
    spool = open_spool(Path.cwd(), start)
    spool.log(1, {"loss": 0.5})
    spool.finish("FINISHED", {"loss": 0.5}, [])
for step in range(3):
    print(f"\\r{name} step {step + 1}/3", end="", flush=True)
print()
estimate = {"mean": 0.7, "low": 0.6, "high": 0.8, "n": 9}
metrics = {"gold": estimate, "win_rate_vs_sft": estimate, "kl": estimate, "pairs": 9,
           "accuracy_before": None, "accuracy_after": estimate}
out.mkdir(parents=True)
(out / "metrics.json").write_text(json.dumps(metrics))
(out / "execution").write_text(todo.get("execution") or os.environ["RLHF_EXECUTION"])
if todo.get("notes"):
    sys.path.insert(0, todo["notes"])
    from tasks.running.provenance import entry_digest, note_made_from
    from tasks.running.snapshot import take_snapshot
    root = Path.cwd()
    (root / ".work" / name).mkdir(parents=True, exist_ok=True)
    note_made_from(root, take_snapshot(root, name, ()), entry_digest(root, name))
"""


def start_driver(workspace: Path, program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CANCELLABLE + program],
        cwd=workspace,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )


@pytest.fixture(name="workspace")
def workspace_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "workspace"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text(
        "[core]\n  no_scm = true\n  analytics = false\n  check_update = false\n"
    )
    (root / "stage.py").write_text(STAGE)
    (root / "input.txt").write_text("one")
    (root / "todo.json").write_text("{}")
    yaml = YAML()
    (root / "dvc.yaml").write_text(PIPELINE)
    params = yaml.load(ROOT / "params.yaml")
    for key in list(params["rounds"])[1:]:
        del params["rounds"][key]
    params["final"] = "r1"
    yaml.dump(params, root / "params.yaml")
    # DVC starts stages by the user's shell. This one stays between, unless the command has `exec`.
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path / "dvc-global"))
    for name in ("MLFLOW_TRACKING_URI", "RLHF_MLFLOW_UI"):
        monkeypatch.delenv(name, raising=False)
    return root


def ask(root: Path, **todo: dict[str, Any]) -> None:
    """What the stages shall do from now on; `reward_r1` stands for `reward@r1`."""
    named = {name.replace("_", "@"): what for name, what in todo.items()}
    (root / "todo.json").write_text(json.dumps(named))
