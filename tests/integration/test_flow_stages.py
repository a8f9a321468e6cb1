"""The flow over stages that do what tests ask of them: a small dvc.yaml, real DVC and Prefect."""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

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
from tasks.workspace.driver_lock import LOCK_FILE, Driver, sole_use
from tests.integration.flow_world import ROOT, ask, workspace_fixture  # noqa: F401

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("prefect")]


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


def test_a_flow_without_work_asks_dvc_for_no_single_stage(
    workspace: Path, caplog: pytest.LogCaptureFixture
):
    flow(workspace)
    caplog.clear()

    flow(workspace)

    said = [record.getMessage() for record in caplog.records]
    assert "All 3 stages are unchanged; nothing to run." in said
    assert not [line for line in said if "didn't change, skipping" in line]


def test_what_follows_a_stale_stage_is_asked_again_and_may_be_unchanged(workspace: Path):
    ask(workspace, sft={"execution": "the same bytes"})
    flow(workspace)
    (workspace / "input.txt").write_text("two")

    state = flow(workspace)

    assert state.message == "All 3 stages are up to date."
    assert names(state) == {
        "sft": "Completed", "reward@r1": "Unchanged", "evaluate@r1": "Unchanged"
    }  # fmt: skip


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


def test_a_flow_that_waits_says_besides_what_became_stale(workspace: Path):
    waits = {"status": "waiting", "code": 5, "message": "for labels"}
    ask(workspace, reward_r1={"changes": ["input.txt", "two"], **waits})

    state = flow(workspace)

    assert (state.is_completed(), state.name) == (True, "Waiting")
    assert state.message == (
        "reward@r1: for labels (Stages that went through became stale while the flow ran: "
        "sft (input.txt).)"
    )


def test_a_run_is_named_by_what_it_differs_in(workspace: Path):
    params = workspace / "params.yaml"
    params.write_text(re.sub("kl_coef: .*", "kl_coef: 0.31", params.read_text()))

    flow_run = flow(workspace).state_details.flow_run_id

    assert flow_run is not None
    with get_client(sync_client=True) as client:
        name = client.read_flow_run(flow_run).name
    assert "kl 0.31" in name.split(", ")
    assert name.split(", ")[-1] == "1 round", "there is no commit here"


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


def test_who_is_waited_for_gets_a_page_with_a_link(workspace: Path):
    message = "round r1 waits for 137 of 200 judgments; label at http://127.0.0.1:8765 (`make`)"
    ask(workspace, reward_r1={"status": "waiting", "code": 5, "message": message})

    flow(workspace)

    assert "[http://127.0.0.1:8765](http://127.0.0.1:8765) (`make`)" in artifact("waiting")


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


def test_a_crash_is_tried_twice_and_no_more(workspace: Path):
    ask(workspace, sft={"killed": 9})
    state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "Killed")
    assert (workspace / "tried-sft").read_text() == "xx"


def test_wrong_params_fail_the_flow_before_any_stage(workspace: Path):
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace("kl_coef", "kl_coeff"))
    state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "BadInput")
    assert "ppo.kl_coeff" in str(state.message)
    assert task_runs(state) == {}


def test_a_damaged_outcome_fails_the_flow_before_any_stage(workspace: Path):
    damaged = workspace / ".work/sft/outcome.json"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_text("")
    state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "BadInput")
    assert str(damaged.relative_to(workspace)) in str(state.message)
    assert task_runs(state) == {}


def test_a_second_flow_in_the_same_workspace_is_refused(workspace: Path):
    with sole_use(workspace, Driver(name="make repro")):
        state = flow(workspace)
    assert (state.is_failed(), state.name) == (True, "Busy")
    assert "make repro works here since 20" in str(state.message)


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


def test_mlflow_runs_are_linked_where_mlflow_has_a_page(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLHF_MLFLOW_UI", "http://127.0.0.1:5000")
    ask(workspace, reward_r1={"logs": str(ROOT)})

    flow(workspace)

    runs = dict(re.findall(r"\| (\S+) \| \[([0-9a-f]{32})\]\(", artifact("mlflow-runs")))
    assert f"](http://127.0.0.1:5000/#/runs/{runs['reward@r1']}) |" in artifact("mlflow-runs")


def test_stages_on_the_accelerator_find_one_fork_server(workspace: Path):
    for name in ("tasks/__init__.py", "tasks/running/__init__.py", "tasks/running/fork_server.py"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text("import sys\nsys.stdin.read()" if "server" in name else "")
    definition = (workspace / "dvc.yaml").read_text()
    for stage in ("sft", "reward"):
        command = "cmd: exec python stage.py results/" + {"sft": "baseline"}.get(stage, stage)
        assert definition.count(command) == 1
        noting = command.replace("exec", f"echo $RLHF_FORK_SERVER > {stage}.server && exec")
        indent = " " * (4 if stage == "sft" else 6)
        definition = definition.replace(command, f"meta: {{gpu: true}}\n{indent}{noting}")
    (workspace / "dvc.yaml").write_text(definition)

    assert flow(workspace).is_completed()

    first, second = (
        (workspace / f"{stage}.server").read_text().strip() for stage in ("sft", "reward")
    )
    assert first == second
    assert first.startswith("rlhf-")
