"""Rounds by people, from end to end: real Prefect, real page, a scripted person over HTTP.

    python -m pytest -m slow tests/integration/test_people_rounds.py
    SCREENSHOTS=docs/rounds-by-people make people-rounds      # with the pictures

`make ui` and `make annotate` run in a copy of the repository with tiny parameters. A run ends as
`Waiting`; the person labels; the page's event starts the next run, which resumes where the first
one stopped. After each round a person decides about promotion; at last what was promoted is rolled
back, and the person withdraws what she said. Minutes on two quiet cores.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from ruamel.yaml import YAML

from data.support_desk.rubric import score_response
from feedback.judgments import read_judgments
from flows.access import authorization, sign_in
from tests.integration.camera import Camera, camera
from tests.integration.tiny_checkout import World, unrun_fixture  # noqa: F401
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(10_000)]

PATIENCE_SECONDS = 2400
LOOSE = {"win_rate": 0, "max_kl": 1e6, "min_length": 0, "max_length": 1e6, "min_diversity": 0}
"""Limits of the gate that every policy keeps to."""


class Prefect:
    """What people do in Prefect's UI, by the interface that the UI uses."""

    def __init__(self, address: str, password: str) -> None:
        self.address, self.password = address, password
        headers = {"Authorization": authorization(password)}
        self._client = httpx.Client(
            base_url=f"{address}/api", timeout=60, trust_env=False, headers=headers
        )

    def order(self, deployment: str, **form: Any) -> str:
        found = self._ask("GET", f"/deployments/name/{deployment}")
        body = {"idempotency_key": uuid.uuid4().hex, "parameters": form}
        return str(self._ask("POST", f"/deployments/{found['id']}/create_flow_run", body)["id"])

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """Newest first."""
        body = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_DESC"}
        found: list[dict[str, Any]] = self._ask("POST", "/flow_runs/filter", body)
        return [
            run for run in found if run["state_name"] != "Scheduled" or not run["auto_scheduled"]
        ]

    def tasks(self, flow_run: str) -> dict[str, str]:
        """Task -> name of its state."""
        body = {"flow_runs": {"id": {"any_": [flow_run]}}}
        return {
            run["name"]: run["state_name"] for run in self._ask("POST", "/task_runs/filter", body)
        }

    def artifact(self, key: str) -> Any:
        body = {"artifacts": {"key": {"any_": [key]}}}
        (found,) = self._ask("POST", "/artifacts/latest/filter", body)
        return found["data"]

    def fill_in(self, flow_run: str, **form: str | bool) -> None:
        done = self._ask("POST", f"/flow_runs/{flow_run}/resume", {"run_input": form})
        assert done["status"] == "ACCEPT", done

    def page(self, flow_run: str) -> str:
        return f"{self.address}/runs/flow-run/{flow_run}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        def answered() -> Any:
            answer = self._client.request(method, path, json=body)
            # Its SQLite is locked: the server asks to be asked again, as its own client does.
            return None if answer.status_code == 503 else answer.raise_for_status()

        return eventually(answered).json()


def ended(prefect: Prefect, flow: str, number: int) -> dict[str, Any]:
    """The flow's run number `number` (from 1), as soon as it has ended or is suspended."""

    def look() -> Any:
        runs = prefect.runs(flow)
        if len(runs) < number:
            return None
        run = runs[len(runs) - number]
        final = run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED", "PAUSED")
        return run if final else None

    run: dict[str, Any] = eventually(look, PATIENCE_SECONDS)
    return run


@contextmanager
def started(world: World, *command: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=world.root,
        env=world.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def address(process: "subprocess.Popen[str]", name: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(rf"{name}:? +(http://127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError(f"{name} has ended")


def label(page: str, token: str, at_most: int) -> int:
    """Label up to `at_most` pairs by the rubric; how many were left to this person."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=page, headers=headers, timeout=60, trust_env=False) as client:
        view = client.post("/api/task").json()
        for _ in range(at_most):
            if view["state"] != "pair":
                break
            body = {"assignment_id": view["task"]["assignment_id"], "choice": choose(view["task"])}
            body |= {"visible_ms": 4000, "key": uuid.uuid4().hex}
            view = client.post("/api/judgments", json=body).raise_for_status().json()
    return int(view["pairs"]) - int(view["done"])


def choose(task: dict[str, Any]) -> str:
    left, right = (score_response(task["prompt_raw"], task[f"{s}_raw"]) for s in ("left", "right"))
    return "tie" if left == right else "left" if left > right else "right"


@pytest.fixture
def world(unrun: World) -> World:
    """Rounds by people."""
    yaml = YAML()
    params = yaml.load(unrun.root / "params.yaml")
    params["label"]["annotators"] = "people"
    yaml.dump(params, unrun.root / "params.yaml")
    unrun.git("commit", "--quiet", "--all", "-m", "people")
    return unrun


def test_two_rounds_by_people_a_decision_after_each_a_rollback_and_a_withdrawal(world: World):
    with (
        started(world, "flows.serve", "--prefect-port", free(), "--mlflow-port", free()) as ui,
        started(world, "feedback", "serve", "--port", "0", "--gold-rate", "0") as desk,
        camera() as pictures,
    ):
        page = address(desk, "The labelling page")
        password = world.root / ".work/prefect/auth"
        prefect = Prefect(address(ui, "Prefect"), password.read_text().strip())
        mlflow = MlflowClient(address(ui, "MLflow"))
        if pictures:
            pictures.take("signed-in", sign_in(prefect.address, prefect.password), "Dashboard")
        eventually(lambda: deployed(prefect))
        token = world.run(sys.executable, "-m", "feedback", "token", "ana").strip()

        if pictures:
            deployment = prefect._ask("GET", "/deployments/name/rlhf/rlhf")["id"]
            order = (
                f"{prefect.address}/deployments/deployment/{deployment}/run?parameters=%257B%257D"
            )
            pictures.take_whole("order", order, "wait_for_people", "seeds")

        # A run goes as far as it can without people, and holds nothing.
        prefect.order("rlhf/rlhf", name="ours")
        run = ended(prefect, "rlhf", 1)
        assert (run["state_type"], run["state_name"]) == ("COMPLETED", "Waiting")
        waits = "label@r1: round r1 waits for 48 of 48 judgments; label at " + page
        assert run["state"]["message"].startswith(waits)
        assert f"[{page}]({page})" in prefect.artifact("waiting")
        assert prefect.runs("promote") == []
        if pictures:
            pictures.take("waiting", prefect.page(run["id"]), "Waiting", "label@r1")

        # `dvc repro` says the same, whoever asks.
        assert label(page, token, 11) == 37
        if pictures:
            photograph_the_desk(pictures, world, page, token)
        said = world.run(sys.executable, "-m", "dvc", "repro", expect=255)
        assert f"round r1 waits for 37 of 48 judgments; label at {page}" in said
        assert world.json(".work/label@r1/outcome.json")["code"] == 5

        # The last judgment starts the next run, by an event.
        assert label(page, token, 1000) == 0
        assert ended(prefect, "rlhf-on-feedback", 1)["created_by"]["type"] == "AUTOMATION"
        run = ended(prefect, "rlhf", 2)
        assert run["state_name"] == "Waiting"
        assert "round r2 waits for 48 of 48 judgments" in run["state"]["message"]
        states = prefect.tasks(run["id"])
        assert states["sample@r1"] == "Unchanged"
        later = ("label@r1", "validate@r1", "reward@r1", "ppo@r1", "evaluate@r1", "sample@r2")
        assert {states[stage] for stage in later} == {"Completed"}
        judgments = read_judgments(world.root / ".work/runs/ours/data/rounds/r1/judgments.jsonl")
        assert {(one.kind, one.annotator_id) for one in judgments} == {("human", "ana")}
        assert len(judgments) == 48
        if pictures:
            pictures.take("continued", prefect.page(run["id"]), "round-labelled", "label@r2")

        # A person is asked about the new policy, and approves it.
        asked = ended(prefect, "promote", 1)
        assert asked["state_name"] == "Suspended"
        rows = json.loads(prefect.artifact("promotion-r1"))
        assert [row["policy"] for row in rows] == ["sft", "r1"]
        if pictures:
            pictures.take("asked", prefect.page(asked["id"]), "Suspended", "Resume")
            pictures.press("Resume")
            pictures.wait(lambda: pictures.sees("Shall the policy of round r1 of the run ours"))
            pictures.keep("form")
        # A policy this small passes no gate.
        prefect.fill_in(
            asked["id"],
            decision="approve",
            who="Lea",
            why="better on all counts",
            override=True,
        )
        eventually(lambda: prefect.runs("promote")[0]["state_name"] == "Promoted")
        assert production(world) == ("r1", "approved", "Lea", "better on all counts")
        if pictures:
            pictures.take("promoted", prefect.page(asked["id"]), "Promoted")

        # The second round: approving is refused, since it passes no gate either; then rejected.
        assert label(page, token, 1000) == 0
        run = ended(prefect, "rlhf", 3)
        assert run["state"]["message"] == (
            "All 19 stages are up to date. Branch runs/ours, tag done/ours."
        )
        asked = ended(prefect, "promote", 2)
        assert [row["policy"] for row in json.loads(prefect.artifact("promotion-r2"))] == [
            "sft", "r1", "r2"
        ]  # fmt: skip
        prefect.fill_in(asked["id"], decision="approve", who="Lea", why="it is newer")
        eventually(lambda: prefect.runs("promote")[0]["state_name"] == "NotPromoted")
        refused = prefect.runs("promote")[0]["state"]
        assert refused["type"] == "FAILED"
        assert refused["message"].startswith("round r2 does not pass the gate. win rate: 0.")
        assert production(world) == ("r1", "approved", "Lea", "better on all counts")
        prefect.order("promote/promote", round_key="r2", workspace=".work/runs/ours")
        asked = ended(prefect, "promote", 3)
        assert asked["state_name"] == "Suspended"
        prefect.fill_in(asked["id"], decision="reject", who="Lea", why="no better")
        eventually(lambda: prefect.runs("promote")[0]["state_name"] == "Rejected")
        assert production(world)[0] == "r1"

        # By limits that it keeps to, it passes, and is promoted without an override.
        prefect.order("promote/promote", round_key="r2", workspace=".work/runs/ours", limits=LOOSE)
        asked = ended(prefect, "promote", 4)
        assert asked["state_name"] == "Suspended"
        assert "**no**" not in prefect.artifact("gate-r2")
        prefect.fill_in(asked["id"], decision="approve", who="Lea", why="a trial")
        eventually(lambda: prefect.runs("promote")[0]["state_name"] == "Promoted")
        assert "in spite of" not in prefect.runs("promote")[0]["state"]["message"]
        assert production(world) == ("r2", "approved", "Lea", "a trial")

        # Once more: nothing to label, nothing to do, nobody is asked again.
        prefect.order("rlhf/rlhf", name="ours")
        run = ended(prefect, "rlhf", 4)
        assert set(prefect.tasks(run["id"]).values()) == {"Unchanged"}
        assert len(prefect.runs("promote")) == 4

        # In use it is worse, so what was there before comes back; MLflow's server says so.
        decided = ("--who", "Lea", "--why", "worse in use")
        world.run(sys.executable, "-m", "tasks.promote", "--rollback", *decided)
        assert in_production(mlflow).tags["rlhf.round"] == "r1"

        # Ana withdraws: what she said goes, the versions that it formed are marked, and the rounds
        # wait for somebody else.
        said = world.run(sys.executable, "-m", "tasks.forget", "--annotator", "ana", "--yes")
        assert "Marked in MLflow: " in said
        assert in_production(mlflow).tags["withdrawn"].startswith("contains withdrawn data")
        judged = [
            world.root / ".work/runs/ours/data/rounds" / key / "judgments.jsonl"
            for key in ("r1", "r2")
        ]
        assert not any(path.exists() for path in judged)
        prefect.order("rlhf/rlhf", name="ours")
        run = ended(prefect, "rlhf", 5)
        assert run["state_name"] == "Waiting"
        assert "round r1 waits for 48 of 48 judgments" in run["state"]["message"]
        token = world.run(sys.executable, "-m", "feedback", "token", "bo").strip()
        assert label(page, token, 1000) == 0
        # He prefers what she preferred: the policy and the pairs of round r2 are the same, so his
        # answers complete both rounds. Each tells the flow, and one of two runs finds the other.
        eventually(
            lambda: any(
                str(run["state"]["message"]).startswith("All 19 stages are up to date.")
                for run in prefect.runs("rlhf")[:-5]
            )
        )
        for path in judged:
            assert {one.annotator_id for one in read_judgments(path)} == {"bo"}


def photograph_the_desk(pictures: Camera, world: World, page: str, token: str) -> None:
    """The page with the pair that ana is at, and the overview of the one who leads the round."""
    pictures.sign_in(page, token)
    pictures.take("pair", page, "Response 1", "11 by you")
    lead = world.run(sys.executable, "-m", "feedback", "token", "lea", "--lead").strip()
    pictures.sign_in(page, lead)
    pictures.take("overview", f"{page}/lead", "11 of 48")


def deployed(prefect: Prefect) -> bool:
    try:
        return bool(prefect._ask("GET", "/deployments/name/promote/promote"))
    except httpx.HTTPError:
        return False


def in_production(client: MlflowClient) -> ModelVersion:
    return client.get_model_version_by_alias("rlhf-policy", "production")


def production(world: World) -> tuple[str, ...]:
    client = MlflowClient(f"sqlite:///{world.root}/.work/mlflow/mlflow.db")
    tags = in_production(client).tags
    return tuple(tags[key] for key in ("rlhf.round", "decision", "decided_by", "reason"))


def free() -> str:
    from flows.servers import any_free_port

    return str(any_free_port())
