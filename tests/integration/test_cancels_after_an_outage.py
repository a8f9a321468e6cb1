"""Who runs stages hears of a cancel after Prefect's server was away. A real server."""

import asyncio
import time
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Running

from flows import servers
from flows.environment import environment
from flows.pool_worker import PatientObserver
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.long

AWAY_SECONDS = 20


@flow
def stage() -> None:
    """Never runs here: the test sets the states of its run."""


def test_a_cancel_is_heard_of_after_the_server_was_away(tmp_path: Path) -> None:
    env = {**environment(tmp_path), "PREFECT_HOME": str(tmp_path)}
    with servers.prefect_server(servers.any_free_port(), env) as server:
        server.wait()
        password = (tmp_path / "auth").read_text().strip()
        settings = {PREFECT_API_URL: f"{server.url}/api", PREFECT_API_AUTH_STRING: password}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            run = client.create_flow_run(stage, state=Running()).id

            def come_back_and_cancel() -> None:
                server.child.process.kill()
                time.sleep(AWAY_SECONDS)
                server.child.start_again()
                server.wait()
                client.set_flow_run_state(run, Cancelling())

            assert asyncio.run(_heard(run, come_back_and_cancel)) == run


async def _heard(run: UUID, meanwhile) -> UUID:
    heard: asyncio.Queue[UUID] = asyncio.Queue()
    async with PatientObserver(on_cancelling=heard.put_nowait) as observer:
        observer.add_in_flight_flow_run_id(run)
        await asyncio.to_thread(meanwhile)
        return await asyncio.wait_for(heard.get(), PATIENCE_SECONDS)
