"""The Prefect server as `make ui` starts it: schedules fire, and its services stay alive."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import ConcurrencyOptions, State, StateType
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Crashed, Late, Pending, Running, Scheduled

from flows import automations, promotion, runs, servers, silent
from flows.complaints import Complaints
from flows.crashed import report_crash
from flows.environment import environment
from flows.runner import Worker, deployments
from flows.runs import TRIGGER
from flows.serve import WAITING_SECONDS, waiting_runs
from tests.waiting import eventually

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BRISK = {
    # The server's services look every second or two instead of every five to sixty.
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    # Not a hundred rows at once, over which SQLite's writers would wait for each other.
    "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "3",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
}


@flow
def clock() -> None:
    """Never runs here: the tests set the states of its runs."""


@task
def tick() -> None:
    """As `clock`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    home = tmp_path_factory.mktemp("prefect")
    env = {**environment(home), "PREFECT_HOME": str(home), **BRISK}
    with servers.prefect_server(servers.any_free_port(), env) as running:
        running.wait()
        yield running


@contextmanager
def client_of(server: servers.Server) -> Iterator[SyncPrefectClient]:
    with (
        temporary_settings(
            {PREFECT_API_URL: f"{server.url}/api", PREFECT_API_AUTH_STRING: password(server)}
        ),
        get_client(sync_client=True) as client,
    ):
        yield client


def password(server: servers.Server) -> str:
    return (server.child.log.parent / "auth").read_text().strip()


def scheduled(client: SyncPrefectClient, deployment: Any) -> list[Any]:
    """What a runner is given when it asks for the runs that are due."""
    now = datetime.now(tz=UTC)
    return client.get_scheduled_flow_runs_for_deployments([deployment], scheduled_before=now)


def waiting(server: servers.Server) -> int:
    """How many runs wait; a server that is busy for seconds has not said it."""
    (found,) = eventually(
        lambda: [
            count for count in [waiting_runs(server.url, password(server))] if count is not None
        ]
    )
    return int(found)


def test_ordered_runs_that_nobody_takes_are_counted(server: servers.Server):
    """Five of one deployment, while the one that runs takes its time; and what is not due yet."""
    now = datetime.now(tz=UTC)
    due, soon = now - timedelta(seconds=WAITING_SECONDS + 1), now + timedelta(hours=1)
    with client_of(server) as client:
        # Before other tests have runs that become due meanwhile.
        assert waiting(server) == 0
        for _ in range(4):
            client.create_flow_run(clock, state=Scheduled(scheduled_time=due))
        client.create_flow_run(clock, state=Late(scheduled_time=due))
        client.create_flow_run(clock, state=Scheduled(scheduled_time=soon))
        at_work = client.create_flow_run(clock, state=Running())
        # A stage that it has ordered in a work pool waits for a worker there, and for no run.
        orderer = client.create_task_run(tick, at_work.id, "0", state=Running())
        client.create_flow_run(
            clock, parent_task_run_id=orderer.id, state=Scheduled(scheduled_time=due)
        )
        assert waiting(server) == 5
    assert waiting_runs(server.url, "wrong") is None


def test_a_schedule_fires_and_no_service_of_the_server_fails(server: servers.Server):
    schedule = IntervalSchedule(interval=timedelta(seconds=5))
    with client_of(server) as client:
        owner = client.create_flow_from_name("scheduled")
        deployment = client.create_deployment(
            owner, "often", schedules=[DeploymentScheduleCreate(schedule=schedule, active=True)]
        )
        runs = eventually(lambda: scheduled(client, deployment))
        assert runs[0].auto_scheduled
        # Nobody takes it: the service that looks for late runs has to say so.
        eventually(lambda: client.read_flow_run(runs[0].id).state.name == "Late")
        # With its runs, so that none more is overdue while other tests count those that are.
        client.delete_deployment(deployment)
    log = server.child.log.read_text(encoding="utf-8")
    assert Complaints(server.child.log).of(log) == [], log


@pytest.mark.parametrize(
    ("flow_state", "afterwards"),
    [
        (Running(), "Crashed"),
        (Crashed(message="its runner says so"), "Crashed"),
        (AwaitingRetry(), "AwaitingRetry"),  # Somebody has asked for it to be tried again.
    ],
)
def test_no_task_of_a_dead_run_stays_running(
    server: servers.Server, flow_state: State[Any], afterwards: str
):
    with client_of(server) as client:
        run = client.create_flow_run(clock, state=Running())
        task_run = client.create_task_run(tick, run.id, "0", state=Running())
        client.set_flow_run_state(run.id, flow_state, force=True)
        report_crash(str(run.id))
        (known,) = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        )
        assert (known.id, known.state_name) == (task_run.id, "Crashed")
        assert client.read_flow_run(run.id).state_name == afterwards


def test_a_run_that_a_worker_has_taken_up_and_that_never_starts_has_crashed(server: servers.Server):
    ours = flow(name="rlhf")(lambda: None)
    with client_of(server) as client:
        automations.register(client, silent.never_started(10))
        lost = client.create_flow_run(ours, state=Pending())
        started = client.create_flow_run(ours, state=Pending())
        client.set_flow_run_state(started.id, Running())
        eventually(lambda: client.read_flow_run(lost.id).state_name == "Crashed")
        assert client.read_flow_run(started.id).state_name == "Running"
        automations.remove(client, silent.NEVER)


def test_our_automations_are_made_once_and_touched_only_where_they_differ(
    server: servers.Server, monkeypatch: pytest.MonkeyPatch
):
    def known(name: str) -> list[dict[str, Any]]:
        answer = client._client.post("/automations/filter", json={})
        return [each for each in answer.json() if each["name"] == name]

    monkeypatch.setenv("RLHF_NOTIFY_URL", "http://user:s3cret@127.0.0.1:9/hook")
    with client_of(server) as client:
        silent.register(client)
        first = {
            name: known(name) for name in (silent.NAME, silent.NEVER, silent.ALIVE, silent.TOLD)
        }
        assert [len(each) for each in first.values()] == [1, 1, 1, 1]
        assert "s3cret" not in str(first)
        # A change would make the server forget which runs it waits to hear from.
        silent.register(client)
        assert {name: known(name) for name in first} == first

        # Switched off by a person, it stays so when it changes.
        (mine,) = client.read_automations_by_name(silent.NAME)
        client.pause_automation(mine.id)
        automations.register(client, silent.crashed(77))
        (changed,) = known(silent.NAME)
        assert (changed["id"], changed["trigger"]["within"]) == (str(mine.id), 77)
        assert not changed["enabled"]
        client.create_automation(silent.crashed())
        silent.register(client)
        assert [each["trigger"]["within"] for each in known(silent.NAME)] == [150]

        monkeypatch.delenv("RLHF_NOTIFY_URL")
        silent.register(client)
        assert known(silent.TOLD) == []


def test_what_people_made_of_a_schedule_outlives_a_restart_of_the_runner(server: servers.Server):
    """`make ui` and the worker of compose register by the same code."""

    def register() -> list[Any]:
        return [each.apply() for each in deployments(ROOT) if each.name in ("rlhf", "rlhf-sweep")]

    nightly = DeploymentScheduleCreate(
        schedule=CronSchedule(cron="0 2 * * *", timezone="Europe/Berlin"),
        parameters={"overrides": {"kl010": {"ppo.kl_coef": 0.1}}, "seeds": [1]},
    )
    with client_of(server) as client:
        run, sweep = ids = register()
        (weekly,) = client.read_deployment(run).schedules
        assert not weekly.active
        assert client.read_deployment(sweep).schedules == []
        client.update_deployment_schedule(run, weekly.id, active=True)
        client.create_deployment_schedules(sweep, [nightly])
        client.pause_deployment(sweep)
        assert register() == ids
        (weekly,) = client.read_deployment(run).schedules
        assert weekly.active
        assert not client.read_deployment(run).paused
        (kept,) = client.read_deployment(sweep).schedules
        assert (kept.schedule, kept.parameters) == (nightly.schedule, nightly.parameters)
        assert client.read_deployment(sweep).paused
        client.pause_deployment(run)


def test_what_people_made_of_a_deployment_outlives_a_restart_of_the_runner(server: servers.Server):
    def register() -> None:
        for each in deployments(ROOT):
            each.apply()

    def known(name: str) -> Any:
        found = client.read_deployment_by_name(name)
        limit = found.global_concurrency_limit
        return found.parameters, found.tags, limit and limit.limit, found.concurrency_options

    with client_of(server) as client:
        register()
        (labelled,) = client.read_automations_by_name(TRIGGER)
        assert labelled.enabled
        client.pause_automation(labelled.id)
        run, promote = "rlhf/rlhf", "promote/promote"
        fresh = known(promote)
        assert fresh == ({"workspace": str(ROOT)}, [], None, None)
        mine = {"recipe": "no_kl", "wait_for_people": "no"}
        client.update_deployment(
            client.read_deployment_by_name(run).id,
            # As an earlier version of the form may have had one.
            DeploymentUpdate(
                parameters={**mine, "former": 1, "rounds": 0},
                tags=["mine"],
                concurrency_limit=1,
                concurrency_options=ConcurrencyOptions(collision_strategy="CANCEL_NEW"),
                enforce_parameter_schema=False,
            ),
        )
        client.update_deployment(
            client.read_deployment_by_name(promote).id,
            DeploymentUpdate(parameters={"workspace": "/elsewhere"}),
        )

        register()

        parameters, tags, limit, options = known(run)
        assert (parameters, tags, limit) == (mine, ["mine"], 1)
        assert options.collision_strategy == "CANCEL_NEW"
        # Where the checkout is, we know better.
        assert known(promote) == fresh
        (labelled,) = client.read_automations_by_name(TRIGGER)
        assert not labelled.enabled


AT_WORK = """
import time
from pathlib import Path

from prefect import flow

HERE = Path(__file__).parent


@flow
def training() -> None:
    (HERE / "started").touch()
    end = time.monotonic() + {patience}
    while not (HERE / "decided").exists():
        assert time.monotonic() < end, "nothing was decided while this run was at work"
        time.sleep(0.1)


@flow
def decision() -> None:
    (HERE / "decided").touch()
"""


def test_a_decision_does_not_wait_for_a_run_that_trains(server: servers.Server, tmp_path: Path):
    (tmp_path / "at_work.py").write_text(AT_WORK.format(patience=60))
    with client_of(server) as client:
        worker = Worker(name="full", limit=1)
        ordered = []
        for name, minutes in ((runs.NAME, 3), (runs.NAME, 2), (promotion.NAME, 1)):
            what = "decision" if name == promotion.NAME else "training"
            loaded = flow.from_source(str(tmp_path), f"at_work.py:{what}")
            deployment = worker.add_deployment(loaded.to_deployment(name))
            due = Scheduled(scheduled_time=datetime.now(tz=UTC) - timedelta(minutes=minutes))
            ordered.append(client.create_flow_run_from_deployment(deployment, state=due).id)
        asyncio.run(worker.start(run_once=True))
        states = [client.read_flow_run(run).state_type for run in ordered]
        for run in ordered:
            client.delete_flow_run(run)
    assert states == [StateType.COMPLETED, StateType.SCHEDULED, StateType.COMPLETED]
