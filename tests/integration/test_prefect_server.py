"""The Prefect server as `make ui` starts it: schedules fire, and its services stay alive."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import servers
from flows.complaints import Complaints
from flows.environment import environment

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


def eventually(found: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)
    return result


def scheduled(client: SyncPrefectClient, deployment: Any) -> list[Any]:
    """What a runner is given when it asks for the runs that are due."""
    now = datetime.now(tz=UTC)
    return client.get_scheduled_flow_runs_for_deployments([deployment], scheduled_before=now)


def test_a_schedule_fires_and_no_service_of_the_server_fails(server: servers.Server):
    schedule = IntervalSchedule(interval=timedelta(seconds=5))
    with client_of(server) as client:
        flow = client.create_flow_from_name("clock")
        deployment = client.create_deployment(
            flow, "often", schedules=[DeploymentScheduleCreate(schedule=schedule, active=True)]
        )
        runs = eventually(lambda: scheduled(client, deployment))
        assert runs[0].auto_scheduled
        # Nobody takes it: the service that looks for late runs has to say so.
        eventually(lambda: client.read_flow_run(runs[0].id).state.name == "Late")
    log = server.child.log.read_text(encoding="utf-8")
    assert Complaints(server.child.log).of(log) == [], log
