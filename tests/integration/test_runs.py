"""Runs that people order: a real Prefect server, git, DVC and MLflow, and stages that take no time.

The checkout has edits that nobody saved, a bare git repository and a folder for DVC as remotes.
Two runs are ordered with the form's values and work at once; then their branches and tags are
looked at, and cloned.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from feedback.page.notify import event_of
from tests.integration.ordered_runs import (  # noqa: F401
    Checkout,
    Orders,
    checkout_fixture,
    served,
    show,
)
from tests.waiting import eventually, is_alive

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def orders(checkout: Checkout) -> Iterator[Orders]:
    with served(checkout) as orders:
        yield orders


@pytest.fixture(scope="module")
def both(checkout: Checkout, orders: Orders) -> dict[str, str]:
    """Name -> flow run of two runs that worked at once, while the checkout was edited."""
    forms: dict[str, dict[str, Any]] = {
        "first": {"overrides": {"ppo.kl_coef": 0.31}, "rounds": 2},
        "second": {"revision": "main", "seeds": [7]},
    }
    ids = {name: orders.order(name=name, **form) for name, form in forms.items()}
    # Neither ends before both have been seen in the middle.
    eventually(lambda: (checkout.folder / "common/first").exists())
    (checkout.root / "stage.py").write_text("edited meanwhile")
    for name, flow_run in ids.items():
        state = orders.ended(flow_run)
        assert (state["name"], state["type"]) == ("Completed", "COMPLETED"), state["message"]
        assert f"Branch runs/{name}, tag done/{name}." in state["message"]
    return ids


def test_the_checkout_and_its_unsaved_edits_stay_as_they_are(
    checkout: Checkout, both: dict[str, str]
):
    assert (checkout.root / "params.yaml").read_text() == "not yet valid: ["
    assert (checkout.root / "stage.py").read_text() == "edited meanwhile"
    status = checkout.git("status", "--porcelain").splitlines()
    assert status == ["M params.yaml", " M stage.py", "?? notes.txt"]
    assert checkout.git("branch", "--show-current") == "main"
    assert checkout.git("log", "--format=%s", "main") == "one"
    assert not (checkout.root / "results").exists()


def test_what_was_entered_is_what_ran(checkout: Checkout, both: dict[str, str]):
    made = {
        name: {path.rpartition("/")[0]: text.split()[0] for path, text in
               checkout.outputs(checkout.root / ".work/runs" / name).items()
               if path.endswith("made-of")}
        for name in both
    }  # fmt: skip
    assert made["first"] == {
        "results/baseline": "0", "results/reward/r1": "0", "results/reward/r2": "0",
        "results/evaluate/r1": "0.31", "results/evaluate/r2": "0.31",
    }  # fmt: skip
    assert made["second"] == {
        "results/baseline": "7", "results/reward/r1": "7", "results/evaluate/r1": "0.04"
    }  # fmt: skip
    assert show(checkout, "done/first", "params.yaml")["final"] == "r2"


def test_each_round_is_a_commit_that_names_its_runs(checkout: Checkout, both: dict[str, str]):
    subjects = checkout.git("log", "--reverse", "--format=%s", "main..runs/first").splitlines()
    assert subjects == [
        "Params of the run first",
        "Round r1 of the run first",
        "Round r2 of the run first",
    ]
    assert show(checkout, "runs/first~1", "metrics/rounds/r1.json")["gold"] == 0.31
    assert set(show(checkout, "runs/first~1", "dvc.lock")["stages"]) == {
        "sft", "reward@r1", "evaluate@r1"
    }  # fmt: skip
    assert set(show(checkout, "done/first", "dvc.lock")["stages"]) == {
        "sft", "reward@r1", "evaluate@r1", "reward@r2", "evaluate@r2"
    }  # fmt: skip
    store = MlflowClient(f"sqlite:///{checkout.root}/.work/mlflow/mlflow.db")
    for name, flow_run in both.items():
        trailers = checkout.git("log", "-1", "--format=%(trailers:unfold)", f"done/{name}")
        values = dict(line.split(": ") for line in trailers.splitlines() if line)
        assert values["Flow-Run"] == flow_run
        tags = store.get_run(values["MLflow-Run"]).data.tags
        assert tags["rlhf.execution"] == flow_run
        assert tags["git.dirty"] == "false"
        start = checkout.git("rev-list", "--reverse", f"main..done/{name}").split()[0]
        assert tags["git.commit"] == start


def test_a_run_that_is_done_and_ordered_again_adds_no_commit_and_no_tag(
    checkout: Checkout, orders: Orders, both: dict[str, str]
):
    before = checkout.git("rev-parse", "runs/first")
    again = orders.order(name="first", overrides={"ppo.kl_coef": 0.31}, rounds=2)
    state = orders.ended(again)
    assert state["name"] == "Completed", state["message"]
    assert "Branch runs/first, tag done/first." in state["message"]
    assert checkout.git("rev-parse", "runs/first") == before
    assert checkout.git("tag", "--list", "done/first*") == "done/first"


@pytest.mark.parametrize("commit", ["done/first", "runs/first~1", "done/second"])
def test_a_fresh_clone_of_what_was_pushed_pulls_the_same_bytes(
    checkout: Checkout, both: dict[str, str], tmp_path: Path, commit: str
):
    clone = tmp_path / "clone"
    checkout.git("clone", "--quiet", str(checkout.folder / "origin.git"), str(clone))
    checkout.run("git", "checkout", "--quiet", commit.replace("runs/", "origin/runs/"), cwd=clone)
    remote = str(checkout.folder / "data-remote")
    checkout.dvc("remote", "modify", "--local", "shared", "url", remote, cwd=clone)
    # What the run had not made by then is not in dvc.lock.
    checkout.dvc("pull", "--allow-missing", cwd=clone)
    name = commit.split("/")[1].split("~")[0]
    there = checkout.outputs(checkout.root / ".work/runs" / name)
    if "~" in commit:
        there = {path: text for path, text in there.items() if "/r2/" not in path}
    assert checkout.outputs(clone) == there != {}
    if "~" not in commit:
        assert checkout.dvc("status", cwd=clone) == "Data and pipelines are up to date."


def test_a_wrong_form_is_refused_and_nothing_is_left(checkout: Checkout, orders: Orders):
    for form in ({"rounds": 0}, {"wait_for_people": "perhaps"}, {"seeds": [-1]}):
        assert orders.submit(name="wrong", **form).status_code in (409, 422), form
    wrong = {
        "ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?": {
            "overrides": {"ppo.kl_coeff": 0.1}
        },
        "until: no stage 'evaluate@r2'; did you mean evaluate@r1?": {"until": "evaluate@r2"},
        "revision: no branch, tag or commit 'nowhere' here": {"revision": "nowhere"},
        "recipe: no variant or preset 'slo'; there are: asking, slow, small": {"recipe": "slo"},
        "recipe: the preset small is for a model of your own": {"recipe": "small"},
    }
    ids = {said: orders.order(name="wrong", **form) for said, form in wrong.items()}
    for said, flow_run in ids.items():
        state = orders.ended(flow_run)
        assert (state["name"], said in state["message"]) == ("BadInput", True), state["message"]
    assert checkout.git("branch", "--list", "runs/wrong") == ""
    assert not (checkout.root / ".work/runs/wrong").exists()


def test_the_recipe_and_whether_people_label_arrive(checkout: Checkout, orders: Orders):
    forms: dict[str, dict[str, Any]] = {
        "slow": {"recipe": "slow"},
        "asking": {"recipe": "asking"},
        "asked": {"recipe": "slow", "wait_for_people": "yes"},
        "not-asked": {"recipe": "asking", "wait_for_people": "no"},
    }
    ids = {name: orders.order(name=name, until="sft", **form) for name, form in forms.items()}
    for flow_run in ids.values():
        state = orders.ended(flow_run)
        assert state["name"] == "Completed", state["message"]
    used = {name: show(checkout, f"done/{name}", "params.yaml") for name in forms}
    assert {
        name: (params["ppo"]["kl_coef"], params["label"]["annotators"])
        for name, params in used.items()
    } == {
        "slow": (0.02, "rubric"), "asking": (0.04, "people"),
        "asked": (0.02, "people"), "not-asked": (0.04, "rubric"),
    }  # fmt: skip


def pushed(checkout: Checkout, name: str) -> list[str]:
    """The branch and the tag of a run, as far as git's remote has them."""
    listed = checkout.git("ls-remote", "--refs", "origin", f"runs/{name}", f"done/{name}")
    return [line.split()[1] for line in listed.splitlines()]


@pytest.fixture
def away(checkout: Checkout, both: dict[str, str]) -> Iterator[Callable[[], None]]:
    """DVC's remote is a file, in which nothing can be kept, until this is called."""
    remote = checkout.folder / "data-remote"
    kept = remote.rename(remote.with_name("kept"))
    remote.write_text("no folder")

    def come_back() -> None:
        if kept.exists():
            remote.unlink()
            kept.rename(remote)

    yield come_back
    come_back()


def test_without_its_data_no_commit_is_pushed_and_the_message_says_how_to_push_both(
    checkout: Checkout, orders: Orders, away: Callable[[], None]
):
    state = orders.ended(orders.order(name="unpushed", rounds=1, seeds=[40]))
    assert (state["name"], state["type"]) == ("NotPushed", "COMPLETED")
    assert "`dvc push` failed" in state["message"]
    assert checkout.git("tag", "--list", "done/unpushed") == "done/unpushed"
    # Neither after the round nor at the end.
    assert pushed(checkout, "unpushed") == []

    away()
    workspace = checkout.root / ".work/runs/unpushed"
    _, *by_hand = re.findall(r"`([^`]+)`", state["message"])
    assert [command.split()[:2] for command in by_hand] == [["dvc", "push"], ["git", "push"]]
    for command in by_hand:
        checkout.run(*command.replace("REMOTE", "origin").split(), cwd=workspace)
    assert pushed(checkout, "unpushed") == ["refs/heads/runs/unpushed", "refs/tags/done/unpushed"]
    assert checkout.dvc("status", "--cloud", "sft", cwd=workspace).endswith("are in sync.")


def test_where_git_refuses_the_run_is_done_and_its_data_are_pushed(
    checkout: Checkout, orders: Orders, both: dict[str, str]
):
    hook = checkout.folder / "origin.git/hooks/pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    try:
        state = orders.ended(orders.order(name="refused", until="sft", seeds=[41]))
    finally:
        hook.unlink()
    assert state["name"] == "NotPushed"
    assert "git push --quiet: ! [remote rejected] runs/refused" in state["message"]
    assert pushed(checkout, "refused") == []
    workspace = checkout.root / ".work/runs/refused"
    assert checkout.dvc("status", "--cloud", "sft", cwd=workspace).endswith("are in sync.")


def test_a_run_that_waits_goes_on_when_the_page_says_that_its_labels_are_there(
    checkout: Checkout, orders: Orders
):
    first = orders.ended(orders.order(name="people", until="reward@r1", seeds=[9]))
    assert (first["name"], first["message"]) == ("Waiting", "reward@r1: for labels")
    store = (checkout.folder / "common/store").read_text()
    assert store == str(checkout.root / ".work/feedback/feedback.db")
    (checkout.folder / "common/labelled").touch()
    orders.ask("POST", "/events", [event_of("r1", "http://127.0.0.1:1")]).raise_for_status()
    eventually(lambda: len(orders.runs("people")) == 2)
    again = orders.runs("people")[1]
    state = orders.ended(again)
    assert state["name"] == "Completed", state["message"]
    assert orders.ask("GET", f"/flow_runs/{again}").json()["tags"] == ["round-labelled"]
    assert checkout.git("log", "-1", "--format=%s", "done/people") == "End of the run people"


def test_a_schedule_that_a_person_switches_on_starts_runs(checkout: Checkout, orders: Orders):
    deployment = orders.deployment("rlhf/rlhf")
    assert deployment is not None
    (weekly,) = deployment["schedules"]
    assert not weekly["active"]
    path = f"/deployments/{deployment['id']}/schedules"
    soon = datetime.now(UTC) + timedelta(seconds=10)  # Else in up to a minute.
    each_minute = {
        "schedule": {"interval": 60, "anchor_date": soon.isoformat()},
        "active": True,
        "parameters": {"name": "scheduled", "until": "sft", "seeds": [30]},
    }
    (made,) = orders.ask("POST", path, [each_minute]).raise_for_status().json()
    try:
        flow_run = eventually(lambda: orders.runs("scheduled"))[0]
        state = orders.ended(flow_run)
        assert state["name"] == "Completed", state["message"]
        assert orders.ask("GET", f"/flow_runs/{flow_run}").json()["auto_scheduled"]
        assert show(checkout, "done/scheduled", "params.yaml")["run"]["seed"] == 30
    finally:
        orders.ask("DELETE", f"{path}/{made['id']}").raise_for_status()


@pytest.mark.slow
def test_several_seeds_are_a_run_for_each(checkout: Checkout, orders: Orders):
    state = orders.ended(orders.order(name="seeds", until="sft", seeds=[1, 2]))
    assert (state["name"], state["message"]) == ("Ordered", "2 runs: seeds-seed1, seeds-seed2")
    for seed in (1, 2):
        # It takes its name when it starts.
        (flow_run,) = eventually(lambda name=f"seeds-seed{seed}": orders.runs(name))
        # Whatever is checked out by then.
        form = orders.ask("GET", f"/flow_runs/{flow_run}").json()["parameters"]
        assert form["revision"] == checkout.git("rev-parse", "main")
        assert orders.ended(flow_run)["name"] == "Completed"
        params = show(checkout, f"done/seeds-seed{seed}", "params.yaml")
        assert params["run"]["seed"] == seed


@pytest.mark.slow
def test_a_run_that_goes_on_with_fewer_rounds_has_the_others_put_away(
    checkout: Checkout, orders: Orders
):
    assert orders.ended(orders.order(name="fewer", rounds=2))["name"] == "Completed"
    workspace = checkout.root / ".work/runs/fewer"
    assert (workspace / "results/evaluate/r2").is_dir()

    state = orders.ended(orders.order(name="fewer", rounds=1))

    assert state["name"] == "Completed", state["message"]
    assert not [path for path in checkout.outputs(workspace) if "r2" in path]
    assert "r2" not in (workspace / "dvc.lock").read_text()
    # Nothing is lost: with the round they come back.
    assert orders.ended(orders.order(name="fewer", rounds=2))["name"] == "Completed"
    assert (workspace / "results/evaluate/r2/metrics.json").is_file()


def test_a_cancel_ends_the_stage_which_keeps_its_checkpoint_and_the_run_can_go_on(
    checkout: Checkout, orders: Orders
):
    common = checkout.folder / "common"
    form = {"name": "cancelled", "until": "sft", "seeds": [12]}
    flow_run = orders.order(**form)
    eventually(lambda: (common / "pid").exists() and (common / "pid").read_text())
    stage = int((common / "pid").read_text())
    state = {"type": "CANCELLING", "name": "Cancelling"}
    orders.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": state}).raise_for_status()
    assert orders.ended(flow_run)["type"] == "CANCELLED"
    assert (common / "checkpoint").read_text() == "saved"
    assert not is_alive(stage)
    assert checkout.git("log", "--format=%s", "main..runs/cancelled") == (
        "Params of the run cancelled"
    )
    assert orders.ended(orders.order(**form))["name"] == "Completed"
