"""Runs of the real stages that are tried again from Prefect's page.

A real server and worker, and the repository with tiny parameters. *Retry* on the page of a run is
the same flow run once more: it goes on in the run's workspace from what is done there.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.integration.ordered_runs import Checkout, Orders, served
from tests.integration.tiny_checkout import outputs
from tests.stage_world import copy_tiny_repository
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

STEPS = 3000
"""Of a base model that somebody cancels meanwhile."""
AT_MOST_STEPS = 500
"""Of those, from the cancel to the end: ten seconds and more, on a slow machine many more. Prefect
by itself would let the stage go on to its end, or kill it after 30 s, some thousand steps later."""
BREAKABLE = """def run_test(stage: Stage) -> None:
    if __import__("pathlib").Path({file!r}).exists():
        raise RuntimeError("broken by the test")
"""


class World(Checkout):
    """The tiny repository, in which the stage `test` fails while the file `broken` is there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broken = folder / "broken"
        copy_tiny_repository(self.root, rounds=1)
        stage = self.root / "tasks/evaluate.py"
        before, found, after = stage.read_text().partition("def run_test(stage: Stage) -> None:\n")
        assert found
        stage.write_text(before + BREAKABLE.format(file=str(self.broken)) + after)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "tiny")

    def workspace(self, run: str) -> Path:
        return self.root / ".work/runs" / run

    def parent(self, flow_run: str) -> Run:
        """The run of the whole execution in MLflow."""
        client = MlflowClient(f"sqlite:///{self.root}/.work/mlflow/mlflow.db")
        experiments = [one.experiment_id for one in client.search_experiments()]
        found = client.search_runs(experiments, f"tags.`rlhf.execution` = '{flow_run}'")
        (parent,) = found
        return parent


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("retried"))


@pytest.fixture(scope="module")
def orders(world: World) -> Iterator[Orders]:
    with served(world) as orders:
        yield orders


def try_again(orders: Orders, flow_run: str, *, force: bool) -> None:
    """What *Retry* sends: Prefect's page without force, its next one with."""
    state = {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}
    path = f"/flow_runs/{flow_run}/set_state"
    answer = orders.ask("POST", path, {"state": state, "force": force}).raise_for_status()
    assert answer.json()["status"] == "ACCEPT"


def tasks(orders: Orders, flow_run: str) -> dict[str, tuple[str, str]]:
    """Id of each task run -> stage and state."""
    body = {"flow_runs": {"id": {"any_": [flow_run]}}}
    found = orders.ask("POST", "/task_runs/filter", body).json()
    return {one["id"]: (one["name"], one["state_name"]) for one in found}


def stages_in(workspace: Path) -> list[int]:
    """The processes of stages that work in a workspace."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = (path / "cwd").readlink() == workspace
            if ours and b"\0tasks." in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:  # It has ended.
            continue
    return found


def logged(orders: Orders, flow_run: str) -> str:
    body = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
    return "\n".join(line["message"] for line in orders.ask("POST", "/logs/filter", body).json())


def test_a_run_whose_stage_failed_goes_on_from_what_is_done_when_it_is_tried_again(
    world: World, orders: Orders
):
    world.broken.touch()
    flow_run = orders.order(name="retried")
    state = orders.ended(flow_run)
    assert (state["name"], state["type"]) == ("Failed", "FAILED")
    assert state["message"].startswith("test: "), state["message"]
    first = tasks(orders, flow_run)
    assert ("evaluate@r1", "Completed") in first.values()
    assert ("test", "Failed") in first.values()
    workspace = world.workspace("retried")
    made = outputs(workspace)
    assert len(made) > 40
    # The parent run has what the round has come to, though the run has not ended well.
    parent = world.parent(flow_run)
    assert parent.info.status == "FAILED"
    assert {"gold", "ppo/objective/kl", "reward/loss"} <= set(parent.data.metrics)
    assert "test/gold" not in parent.data.metrics

    world.broken.unlink()
    try_again(orders, flow_run, force=False)
    state = orders.ended(flow_run)
    assert state["name"] == "Completed", state["message"]
    second = dict(task for id_, task in tasks(orders, flow_run).items() if id_ not in first)
    assert {stage for stage, ended in second.items() if ended != "Unchanged"} == {
        "test", "best_of_n", "report",
    }  # fmt: skip
    assert set(second.values()) == {"Unchanged", "Completed"}
    assert made.items() <= outputs(workspace).items()
    assert [path.name for path in (world.root / ".work/runs").glob("[!.]*")] == ["retried"]
    assert world.git("log", "--reverse", "--format=%s", "main..done/retried").splitlines() == [
        "Round r1 of the run retried", "End of the run retried",
    ]  # fmt: skip
    parent = world.parent(flow_run)
    assert (parent.info.status, "test/gold" in parent.data.metrics) == ("FINISHED", True)


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True])
def test_a_cancelled_run_keeps_its_checkpoint_and_goes_on_from_it_when_it_is_tried_again(
    world: World, orders: Orders, force: bool
):
    name = f"cancelled-{force}".lower()
    flow_run = orders.order(
        name=name,
        until="base",
        seeds=[7 + force],
        overrides={"base.embedded.steps": STEPS},
    )
    work = world.workspace(name) / ".work"
    lines = eventually(lambda: [*work.glob("spool/base/*/metrics.jsonl")])[0]
    eventually(lambda: lines.read_text().count("\n") > 20)
    workspace = world.workspace(name)
    assert len(stages_in(workspace)) == 1
    state = {"type": "CANCELLING", "name": "Cancelling"}
    before = lines.read_text().count("\n")
    orders.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": state}).raise_for_status()
    eventually(lambda: not stages_in(workspace))
    assert orders.ended(flow_run)["type"] == "CANCELLED"
    assert stages_in(workspace) == []
    kept = [int(path.name.removeprefix("step-")) for path in work.glob("base/*/step-*")]
    assert 0 < max(kept) < before + AT_MOST_STEPS
    assert not (world.workspace(name) / "models/base").exists()

    try_again(orders, flow_run, force=force)
    state = orders.ended(flow_run)
    assert state["name"] == "Completed", state["message"]
    said = f"base resumes from its checkpoint at step {max(kept)}"
    eventually(lambda: said in logged(orders, flow_run))
    # Once before the cancel, and once since: the cancelled stage had no second try.
    assert logged(orders, flow_run).count("Running stage 'base':") == 2
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step was made twice"
    assert (world.workspace(name) / "models/base").exists()
    assert world.parent(flow_run).info.status == "FINISHED"


@pytest.mark.slow
def test_a_run_that_is_tried_again_goes_on_wherever_the_branch_that_it_started_from_is_now(
    world: World, orders: Orders
):
    world.git("branch", "moving")
    flow_run = orders.order(name="moved", revision="moving", until="prepare")
    assert orders.ended(flow_run)["name"] == "Completed"
    tree = world.git("rev-parse", "moving^{tree}")
    later = world.git("commit-tree", tree, "-p", "moving", "-m", "later")
    world.git("branch", "--force", "moving", later)

    try_again(orders, flow_run, force=True)
    state = orders.ended(flow_run)
    assert state["name"] == "Completed", state["message"]
    # Another order is another wish.
    state = orders.ended(orders.order(name="moved", revision="moving", until="prepare"))
    assert (state["name"], "did not start from moving" in state["message"]) == ("BadInput", True)
