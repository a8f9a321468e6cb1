"""Flow runs of stages in a work pool: whose they are, and who may end them. A real Prefect server.

No worker takes them: the tests set their states, as one on another machine would.
"""

import logging
import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Pending, Running

from flows import servers, stage_flow
from flows.crashed import report_crash
from flows.environment import environment
from flows.stage_flow import register, run_name, run_there
from flows.stages import Ending
from tasks.workspace.orders import Order
from tests.waiting import eventually

pytestmark = pytest.mark.long

POOL = "gpu"
LOGGER = logging.getLogger(__name__)


@flow
def rounds() -> None:
    """Never runs here: the tests set the states of its runs."""


@task
def stage() -> None:
    """As `rounds`."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a server that knows the pool."""
    home = tmp_path_factory.mktemp("prefect")
    env = {**environment(home), "PREFECT_HOME": str(home)}
    with servers.prefect_server(servers.any_free_port(), env) as server:
        server.wait()
        password = (home / "auth").read_text().strip()
        settings = {PREFECT_API_URL: f"{server.url}/api", PREFECT_API_AUTH_STRING: password}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            register(POOL, "process", {})
            yield client


@pytest.fixture
def order() -> Order:
    """Of this test alone."""
    return Order("sft", f"{uuid4().int:040x}"[-40:])


def ordered_by(client: SyncPrefectClient, order: Order, flow_run: UUID) -> UUID:
    """A stage's flow run at work, below the one that has ordered it."""
    parent = client.create_task_run(stage, flow_run, "0", state=Running())
    deployment = client.read_deployment_by_name(f"{stage_flow.NAME}/{POOL}")
    made = client.create_flow_run_from_deployment(
        deployment.id,
        parameters={"stage": order.stage, "revision": order.commit, "execution": ""},
        name=run_name(order.stage, order.commit),
        parent_task_run_id=parent.id,
    )
    for state in (Pending(), Running()):
        client.set_flow_run_state(made.id, state)
    return made.id


def state_of(client: SyncPrefectClient, flow_run: UUID) -> State[Any]:
    state = client.read_flow_run(flow_run).state
    assert state is not None
    return state


def never() -> bool:
    """Whether it is cancelled."""
    return False


def runs_of(client: SyncPrefectClient, order: Order) -> list[UUID]:
    name = FlowRunFilterName(any_=[run_name(order.stage, order.commit)])
    return [run.id for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(name=name))]


def test_the_stage_of_a_flow_that_died_goes_on(client: SyncPrefectClient, order: Order):
    dead = client.create_flow_run(rounds, state=Running())
    at_work = ordered_by(client, order, dead.id)

    report_crash(str(dead.id))

    assert state_of(client, dead.id).is_crashed()
    assert state_of(client, at_work).is_running()
    # A run within it, of no pool, was in the process that died.
    parent = client.create_task_run(stage, dead.id, "1", state=Running())
    within = client.create_flow_run(rounds, parent_task_run_id=parent.id, state=Running())
    report_crash(str(dead.id))
    assert state_of(client, within.id).is_crashed()


def test_who_joins_a_stage_that_is_being_cancelled_orders_it_anew(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)
    cancelled = ordered_by(client, order, client.create_flow_run(rounds, state=Running()).id)
    client.set_flow_run_state(cancelled, Cancelling())

    def work() -> None:
        client.set_flow_run_state(cancelled, Cancelled(), force=True)
        again = eventually(lambda: [one for one in runs_of(client, order) if one != cancelled])
        client.set_flow_run_state(again[0], Completed(), force=True)

    elsewhere = threading.Timer(1.0, work)
    elsewhere.start()
    assert run_there(order, POOL, "e", logger=LOGGER, is_cancelled=never) == Ending("ran")
    elsewhere.join()


def test_a_stage_that_we_have_ordered_and_a_person_cancels_is_not_ordered_again(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)

    def cancel() -> None:
        (ours,) = eventually(lambda: runs_of(client, order))
        client.set_flow_run_state(ours, Cancelled(), force=True)

    person = threading.Thread(target=cancel)
    person.start()
    ending = run_there(order, POOL, "e", logger=LOGGER, is_cancelled=never)
    person.join()
    assert ending == Ending("refused", "its flow run was cancelled")
    assert len(runs_of(client, order)) == 1


def test_a_stage_that_we_have_ordered_and_a_person_deletes_is_waited_for_no_longer(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)

    def delete() -> None:
        (ours,) = eventually(lambda: runs_of(client, order))
        client.delete_flow_run(ours)

    person = threading.Thread(target=delete)
    person.start()
    ending = run_there(order, POOL, "e", logger=LOGGER, is_cancelled=never)
    person.join()
    assert ending == Ending("refused", stage_flow.DELETED)
    assert runs_of(client, order) == []


def test_who_joins_a_stage_that_is_deleted_orders_it_anew(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)
    deleted = ordered_by(client, order, client.create_flow_run(rounds, state=Running()).id)

    def work() -> None:
        client.delete_flow_run(deleted)
        (again,) = eventually(lambda: runs_of(client, order))
        client.set_flow_run_state(again, Completed(), force=True)

    elsewhere = threading.Timer(1.0, work)
    elsewhere.start()
    assert run_there(order, POOL, "e", logger=LOGGER, is_cancelled=never) == Ending("ran")
    elsewhere.join()


def waiting_in(client: SyncPrefectClient, order: Order, pool: str) -> UUID:
    """What a flow has ordered in a pool that nobody works for, and that then died."""
    parent = client.create_task_run(
        stage, client.create_flow_run(rounds, state=Crashed()).id, "0", state=Crashed()
    )
    made = client.create_flow_run_from_deployment(
        client.read_deployment_by_name(f"{stage_flow.NAME}/{pool}").id,
        parameters={"stage": order.stage, "revision": order.commit, "execution": ""},
        name=run_name(order.stage, order.commit),
        parent_task_run_id=parent.id,
    )
    return made.id


def test_a_stage_that_waits_in_another_pool_is_ordered_in_ours(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    """Nobody need ever work for the other one: it may be why the flow was started anew."""
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)
    register("former", "process", {})
    former = waiting_in(client, order, "former")

    def work() -> None:
        (ours,) = eventually(lambda: [one for one in runs_of(client, order) if one != former], 30)
        assert client.read_flow_run(ours).work_pool_name == POOL
        client.set_flow_run_state(ours, Completed(), force=True)

    elsewhere = threading.Thread(target=work)
    elsewhere.start()
    looks = iter(range(300))
    ending = run_there(
        order, POOL, "e", logger=LOGGER, is_cancelled=lambda: next(looks, None) is None
    )
    elsewhere.join()
    assert ending == Ending("ran")
    assert state_of(client, former).is_cancelled()


def test_a_stage_at_work_in_another_pool_is_joined_and_its_pool_is_named(
    client: SyncPrefectClient,
    order: Order,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)
    register("former", "process", {})
    former = waiting_in(client, order, "former")
    for state in (Pending(), Running()):
        client.set_flow_run_state(former, state)
    elsewhere = threading.Timer(1.0, client.set_flow_run_state, (former, Completed()))
    elsewhere.start()
    with caplog.at_level(logging.INFO, LOGGER.name):
        ending = run_there(order, POOL, "e", logger=LOGGER, is_cancelled=never)
    elsewhere.join()
    assert (ending, runs_of(client, order)) == (Ending("ran"), [former])
    assert f"flow run {former} in the pool former" in caplog.text


def test_a_stage_whose_pool_was_deleted_is_ordered_anew_once_a_worker_has_made_it_again(
    client: SyncPrefectClient, order: Order, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stage_flow, "LOOK_SECONDS", 0.1)
    register("mortal", "process", {})

    def is_in_a_pool(flow_run: UUID) -> bool:
        return client.read_flow_run(flow_run).work_pool_name is not None

    def work() -> None:
        (lost,) = eventually(lambda: runs_of(client, order), 30)
        client.delete_work_pool("mortal")
        assert not is_in_a_pool(lost)
        register("mortal", "process", {})
        (again,) = eventually(
            lambda: [one for one in runs_of(client, order) if is_in_a_pool(one)], 30
        )
        assert again != lost
        client.set_flow_run_state(again, Completed(), force=True)

    # With the address of the server.
    elsewhere = threading.Thread(target=copy_context().run, args=(work,))
    elsewhere.start()
    looks = iter(range(300))
    ending = run_there(
        order, "mortal", "e", logger=LOGGER, is_cancelled=lambda: next(looks, None) is None
    )
    elsewhere.join()
    assert ending == Ending("ran")


def test_a_stage_that_waits_in_a_paused_pool_says_so(
    client: SyncPrefectClient,
    order: Order,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Its worker is online all the while."""
    monkeypatch.setattr(stage_flow, "REMIND_SECONDS", 0.0)
    register("paused", "process", {})
    client.send_worker_heartbeat("paused", "worker", 30)
    client.update_work_pool("paused", WorkPoolUpdate(is_paused=True))
    looks = iter([False, True])

    with caplog.at_level(logging.WARNING, LOGGER.name):
        run_there(order, "paused", "e", logger=LOGGER, is_cancelled=lambda: next(looks))

    assert caplog.messages == [
        "The work pool paused is paused; `prefect work-pool resume paused` lets its workers go on"
    ]


ENDED = pytest.mark.parametrize(
    ("orderer", "afterwards"),
    [
        (Running(), {"Running"}),  # It still waits for the stage.
        (Crashed(), {"Cancelling", "Cancelled"}),
        (None, {"Cancelling", "Cancelled"}),  # We have ordered it ourselves.
    ],
)


@ENDED
def test_who_is_cancelled_while_it_waits_for_a_stage_ends_it_where_nobody_else_waits(
    client: SyncPrefectClient,
    order: Order,
    monkeypatch: pytest.MonkeyPatch,
    orderer: State[Any] | None,
    afterwards: set[str],
):
    monkeypatch.setattr(stage_flow, "REMIND_SECONDS", 0.0)
    if orderer is not None:
        ordered_by(client, order, client.create_flow_run(rounds, state=orderer).id)
    logger = logging.getLogger("cancelled")
    logger.addFilter(cancel_at_a_warning)

    # No worker of the pool is online, of which it warns at each look.
    with pytest.raises(KeyboardInterrupt):
        run_there(order, POOL, "e", logger=logger, is_cancelled=never)

    (known,) = runs_of(client, order)
    assert state_of(client, known).name in afterwards


@ENDED
def test_a_stage_that_nobody_wants_any_more_is_ended_where_nobody_else_waits(
    client: SyncPrefectClient,
    order: Order,
    orderer: State[Any] | None,
    afterwards: set[str],
):
    """Of a cancelled run of a sweep, which has no process of its own that a worker could end."""
    if orderer is not None:
        ordered_by(client, order, client.create_flow_run(rounds, state=orderer).id)
    looks = iter([False, True])

    ending = run_there(order, POOL, "e", logger=LOGGER, is_cancelled=lambda: next(looks))

    assert ending == Ending("refused", "it is no longer wanted")
    (known,) = runs_of(client, order)
    assert state_of(client, known).name in afterwards


def cancel_at_a_warning(record: logging.LogRecord) -> bool:
    if record.levelno == logging.WARNING:
        raise KeyboardInterrupt
    return True
