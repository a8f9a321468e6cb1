"""The flow over stages that do what tests ask of them: a small dvc.yaml, real DVC and Prefect."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

# Importing Prefect makes a folder in the user's home: not for our tests.
os.environ.setdefault("PREFECT_HOME", tempfile.mkdtemp(prefix="prefect-"))
os.environ |= {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import TaskRun
from prefect.deployments.runner import RunnerDeployment
from prefect.testing.utilities import prefect_test_harness

from flows import promotion, promotion_request
from flows.graph import plan
from flows.rlhf import rlhf
from flows.stages import run_stage
from tasks.workspace.driver_lock import LOCK_FILE, Driver, sole_use
from tests.background import hear_signals

ROOT = Path(__file__).resolve().parents[2]

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


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


class Lines(logging.Handler):
    """A log to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("test_flow_stages")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def run(root: Path, stage: str, execution: str = "e1") -> Any:
    return run_stage(stage, root, execution=execution, logger=logging.getLogger("test_flow_stages"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Any, seconds: float = 300) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(holds())


# --- One stage -----------------------------------------------------------------------------------


def test_a_stage_runs_then_is_unchanged_then_comes_from_the_run_cache(workspace: Path, log: Lines):
    assert run(workspace, "sft").how == "ran"
    assert run(workspace, "sft").how == "unchanged"
    (workspace / "input.txt").write_text("two")
    assert run(workspace, "sft", "e2").how == "ran"
    assert (workspace / "results/baseline/execution").read_text() == "e2"
    (workspace / "input.txt").write_text("one")
    assert run(workspace, "sft", "e3").how == "cached"
    assert (workspace / "results/baseline/execution").read_text() == "e1"


def test_the_log_has_the_lines_and_the_end_of_the_bar_and_no_advice(workspace: Path, log: Lines):
    run(workspace, "sft")
    assert "Running stage 'sft':" in log.said
    assert "sft step 3/3" in log.said
    assert not [line for line in log.said if "step 1/3" in line or "\r" in line or not line.strip()]
    assert not [line for line in log.said if "dvc push" in line]


def test_what_the_stage_says_of_its_end_is_believed_once_only(workspace: Path, log: Lines):
    ask(workspace, sft={"status": "blocked", "code": 4, "message": "40 % contradict"})
    assert run(workspace, "sft").how == "blocked"
    ask(workspace, sft={"killed": 9})
    ending = run(workspace, "sft")
    assert (ending.how, "SIGKILL" in ending.message) == ("killed", True)


DRIVER = f"""
import logging, signal, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from flows.stages import run_stage
class Cancelled(BaseException): ...
def cancel(*_): raise Cancelled
signal.signal(signal.SIGTERM, cancel)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
run_stage("sft", Path.cwd(), execution="e1", logger=logging.getLogger())
"""
SHORT_GRACE = DRIVER.replace(
    "class Cancelled", "import flows.stages\nflows.stages.GRACE_SECONDS = 1.0\nclass Cancelled"
)


@pytest.mark.parametrize(
    ("signals", "kept"),
    [
        ([signal.SIGINT], True),
        ([signal.SIGTERM], False),
        ([signal.SIGINT, signal.SIGINT], False),
    ],
)
def test_after_a_ctrl_c_a_step_takes_as_long_as_it_needs(
    workspace: Path, signals: list[signal.Signals], kept: bool
):
    ask(workspace, sft={"sleeps": True, "step": 6})
    with driver_of(workspace, SHORT_GRACE) as driver:
        tree = dvc_and_stage(workspace)
        for number in signals:
            driver.send_signal(number)
            assert eventually((workspace / "asked").exists)
        driver.communicate()
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert (workspace / "asked").read_text() == signals[0].name
    assert (workspace / "checkpoint").exists() == kept


def driver_of(workspace: Path, program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=workspace,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )


def dvc_and_stage(workspace: Path) -> list[int]:
    """Their process ids, once both are there."""
    pids = workspace / "pids"
    assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    return [int(pid) for pid in pids.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_dvc_and_the_stage_end_with_us_and_the_checkpoint_is_kept(workspace: Path, number: int):
    ask(workspace, sft={"sleeps": True})
    with driver_of(workspace, DRIVER) as driver:
        tree = dvc_and_stage(workspace)
        driver.send_signal(number)
        said = driver.communicate()[0]
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert eventually(lambda: (workspace / "checkpoint").exists())
    if number != signal.SIGKILL:
        assert "checkpoint saved" in said, "the last words of the stage were not heard"


# --- The flow ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefect() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=600):
        yield


def flow(root: Path) -> State[Any]:
    state: State[Any] = rlhf(workspace=root, return_state=True)
    return state


def task_runs(state: State[Any]) -> dict[str, TaskRun]:
    """Name -> task run, as soon as the server has written down how all of them ended."""
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        deadline = time.monotonic() + 300
        while True:
            runs = client.read_task_runs(flow_run_filter=ours)
            if all(run.state is not None and run.state.is_final() for run in runs):
                break
            assert time.monotonic() < deadline, {run.name: run.state for run in runs}
            time.sleep(0.05)
    return {run.name: run for run in runs}


def names(state: State[Any]) -> dict[str, str | None]:
    return {name: run.state and run.state.name for name, run in task_runs(state).items()}


def artifact(key: str) -> Any:
    with get_client(sync_client=True) as client:
        (found,) = client.request(
            "POST", "/artifacts/latest/filter", json={"artifacts": {"key": {"any_": [key]}}}
        ).json()
    return found["data"]


@pytest.mark.usefixtures("prefect")
def test_the_flow_runs_all_of_dvc_yaml_and_retries_what_was_killed(workspace: Path):
    ask(workspace, reward_r1={"killed": 1})

    state = flow(workspace)

    assert (state.name, state.message) == ("Completed", "All 3 stages are up to date.")
    assert names(state) == {stage.name: "Completed" for stage in plan(workspace)}
    assert task_runs(state)["reward@r1"].run_count == 2
    flow_run = str(state.state_details.flow_run_id)
    assert (workspace / "results/evaluate/r1/execution").read_text() == flow_run
    (sft, r1) = json.loads(artifact("rounds"))
    assert (sft["policy"], r1["policy"]) == ("sft", "r1")
    assert r1["reward model after"] == "0.700 [0.600, 0.800]"
    summary = json.loads((workspace / "reports/summary.json").read_text())
    assert [policy["name"] for policy in summary["policies"]] == ["sft", "r1"]

    again = flow(workspace)

    assert (again.name, again.message) == ("Completed", "All 3 stages are up to date.")
    assert names(again) == {stage.name: "Unchanged" for stage in plan(workspace)}


@pytest.mark.usefixtures("prefect")
def test_a_flow_without_work_asks_dvc_for_no_single_stage(
    workspace: Path, caplog: pytest.LogCaptureFixture
):
    flow(workspace)
    caplog.clear()

    flow(workspace)

    said = [record.getMessage() for record in caplog.records]
    assert "All 3 stages are unchanged; nothing to run." in said
    assert not [line for line in said if "didn't change, skipping" in line]


@pytest.mark.usefixtures("prefect")
def test_what_follows_a_stale_stage_is_asked_again_and_may_be_unchanged(workspace: Path):
    ask(workspace, sft={"execution": "the same bytes"})
    flow(workspace)
    (workspace / "input.txt").write_text("two")

    state = flow(workspace)

    assert state.message == "All 3 stages are up to date."
    assert names(state) == {
        "sft": "Completed", "reward@r1": "Unchanged", "evaluate@r1": "Unchanged"
    }  # fmt: skip


@pytest.mark.usefixtures("prefect")
def test_what_changes_while_the_flow_runs_is_named_and_it_is_not_up_to_date(workspace: Path):
    ask(workspace, evaluate_r1={"changes": ["input.txt", "two"]})

    state = flow(workspace)

    assert (state.is_completed(), state.name) == (True, "Stale")
    assert state.message == (
        "All 3 stages went through, but became stale while the flow ran: sft (input.txt). "
        "Run again."
    )
    ask(workspace)
    assert flow(workspace).message == "All 3 stages are up to date."


@pytest.mark.usefixtures("prefect")
def test_an_entry_that_dvc_recorded_falsely_is_named_and_it_is_not_up_to_date(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    """The shell that DVC starts a stage by edits its input once the stage has ended."""
    ask(workspace, sft={"notes": str(ROOT)})
    shell = workspace / "late-shell"
    shell.write_text(
        '#!/bin/sh\n/bin/sh "$@" && case "$*" in *baseline*) echo two > input.txt;; esac\n'
    )
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))

    for _ in ("run", "unchanged"):
        state = flow(workspace)
        assert (state.is_completed(), state.name) == (True, "Stale")
        assert str(state.message).startswith(
            "All 3 stages went through, but sft: dvc.lock is wrong about its result: "
            "input.txt (used md5 "
        )
        assert "`make doctor FIX=1` removes the entry" in str(state.message)


@pytest.mark.usefixtures("prefect")
def test_a_flow_that_waits_says_besides_what_became_stale(workspace: Path):
    waits = {"status": "waiting", "code": 5, "message": "for labels"}
    ask(workspace, reward_r1={"changes": ["input.txt", "two"], **waits})

    state = flow(workspace)

    assert (state.is_completed(), state.name) == (True, "Waiting")
    assert state.message == (
        "reward@r1: for labels (Stages that went through became stale while the flow ran: "
        "sft (input.txt).)"
    )


@pytest.mark.usefixtures("prefect")
def test_a_run_is_named_by_what_it_differs_in(workspace: Path):
    params = workspace / "params.yaml"
    params.write_text(re.sub("kl_coef: .*", "kl_coef: 0.31", params.read_text()))

    flow_run = flow(workspace).state_details.flow_run_id

    assert flow_run is not None
    with get_client(sync_client=True) as client:
        name = client.read_flow_run(flow_run).name
    assert "kl 0.31" in name.split(", ")
    assert name.split(", ")[-1] == "1 round", "there is no commit here"


@pytest.mark.usefixtures("prefect")
@pytest.mark.parametrize(
    ("status", "code", "completed", "name"),
    [
        ("waiting", 5, True, "Waiting"),
        ("blocked", 4, False, "Blocked"),
        ("stopped", 3, False, "Stopped"),
        ("bad_input", 2, False, "BadInput"),
    ],
)
def test_the_flow_ends_where_a_stage_does_not_go_through_and_says_why(
    workspace: Path, status: str, code: int, completed: bool, name: str
):
    ask(workspace, reward_r1={"status": status, "code": code, "message": "because of this"})

    state = flow(workspace)

    assert (state.is_completed(), state.name) == (completed, name)
    assert state.message == "reward@r1: because of this"
    assert names(state) == {"sft": "Completed", "reward@r1": name}
    assert task_runs(state)["reward@r1"].run_count == 1, "tried again, which cannot help"


@pytest.mark.usefixtures("prefect")
def test_who_is_waited_for_gets_a_page_with_a_link(workspace: Path):
    message = "round r1 waits for 137 of 200 judgments; label at http://127.0.0.1:8765 (`make`)"
    ask(workspace, reward_r1={"status": "waiting", "code": 5, "message": message})

    flow(workspace)

    assert "[http://127.0.0.1:8765](http://127.0.0.1:8765) (`make`)" in artifact("waiting")


@pytest.mark.usefixtures("prefect")
def test_a_person_is_asked_about_each_policy_once_where_the_deployment_is_served(workspace: Path):
    lock = "schema: '2.0'\nstages:\n  ppo@r1:\n    outs:\n    - path: models/rounds/r1/policy\n"
    (workspace / "dvc.lock").write_text(f"{lock}      md5: 0a1b.dir\n")
    promotion_request.ask(workspace, "r1")
    assert asked() == []

    RunnerDeployment.from_flow(promotion.promote, promotion.NAME).apply()
    assert f"{promotion.promote.name}/{promotion.NAME}" == promotion_request.DEPLOYMENT
    promotion_request.ask(workspace, "r1")
    promotion_request.ask(workspace, "r1")
    assert asked() == [{"round_key": "r1", "workspace": str(workspace), "policy": "0a1b.dir"}]

    (workspace / "dvc.lock").write_text(f"{lock}      md5: 2c3d.dir\n")
    promotion_request.ask(workspace, "r1")
    assert len(asked()) == 2


def asked() -> list[dict[str, Any]]:
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["promote"])))
    return [run.parameters for run in found]


@pytest.mark.usefixtures("prefect")
def test_a_crash_is_tried_twice_and_no_more(workspace: Path):
    ask(workspace, sft={"killed": 9})
    state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "Killed")
    assert (workspace / "tried-sft").read_text() == "xx"


@pytest.mark.usefixtures("prefect")
def test_wrong_params_fail_the_flow_before_any_stage(workspace: Path):
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace("kl_coef", "kl_coeff"))
    state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "BadInput")
    assert "ppo.kl_coeff" in str(state.message)
    assert task_runs(state) == {}


@pytest.mark.usefixtures("prefect")
def test_a_second_flow_in_the_same_workspace_is_refused(workspace: Path):
    with sole_use(workspace, Driver(name="make repro")):
        state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "Busy")
    assert "make repro works here since 20" in str(state.message)


@pytest.mark.usefixtures("prefect")
def test_a_run_that_died_without_a_word_is_reported_by_the_next(workspace: Path):
    died = flow(workspace).state_details.flow_run_id
    assert died is not None
    with get_client(sync_client=True) as client:
        from prefect.states import Running

        client.set_flow_run_state(died, Running(), force=True)
        note = {"driver": asdict(Driver(name="a flow", flow_run=str(died))), "dead": []}
        (workspace / LOCK_FILE).write_text(json.dumps(note))
        flow(workspace)
        state = client.read_flow_run(died).state
    assert state is not None
    assert state.is_crashed()


@pytest.mark.usefixtures("prefect")
def test_mlflow_runs_are_linked_where_mlflow_has_a_page(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLHF_MLFLOW_UI", "http://127.0.0.1:5000")
    ask(workspace, reward_r1={"logs": str(ROOT)})

    flow(workspace)

    runs = dict(re.findall(r"\| (\S+) \| \[([0-9a-f]{32})\]\(", artifact("mlflow-runs")))
    assert f"](http://127.0.0.1:5000/#/runs/{runs['reward@r1']}) |" in artifact("mlflow-runs")


# --- make flow -----------------------------------------------------------------------------------


@pytest.mark.long
def test_make_flow_ends_with_its_server_and_all_stages_when_it_is_asked_to(workspace: Path):
    ask(workspace, sft={"sleeps": True})
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    with subprocess.Popen(
        [sys.executable, "-m", "flows.local"],
        cwd=workspace,
        env={**inherited, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        pids = workspace / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        tree = [int(pid) for pid in pids.read_text().split()]
        server = [int(pid) for pid in children(process.pid)]
        assert len(server) > len(set(server) & set(tree)), "no server of its own"
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[0]
    assert eventually(lambda: not any(map(is_alive, [*tree, *server])))
    assert "checkpoint saved" in said
    assert (workspace / ".work/prefect/prefect.db").exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
