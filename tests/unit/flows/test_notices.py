"""What is told of the end of a run in this process, and a receiver that does not take it."""

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelling, Completed, Crashed, Failed

from flows import notices, servers
from tests.waiting import PATIENCE_SECONDS

STATE = Completed(name="Waiting", message='sample@r1: "labels" < wanted')


class Receiver:
    """Keeps what it is told; answers only when it may."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.may_answer = threading.Event()
        self.heard = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.told.append((self.headers["Content-Type"], json.loads(body)))
                receiver.heard.set()
                receiver.may_answer.wait(PATIENCE_SECONDS)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((servers.HOST, 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://{servers.HOST}:{self.server.server_port}/services/s3cret-path"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    monkeypatch.setenv("RLHF_NOTIFY_URL", receiver.address)
    yield receiver
    receiver.may_answer.set()
    receiver.server.shutdown()
    receiver.server.server_close()


def test_the_end_of_a_run_is_told_once_in_words_and_in_parts(receiver: Receiver):
    receiver.may_answer.set()
    assert notices.tell("kl0.10 r2", STATE) == ""
    ((kind, told),) = receiver.told
    assert kind == "application/json"
    assert told == {
        "text": 'kl0.10 r2: Waiting. sample@r1: "labels" < wanted',
        "run": "kl0.10 r2",
        "state": "Waiting",
        "type": "COMPLETED",
        "message": 'sample@r1: "labels" < wanted',
        "flow_run": "",
        "page": "",
    }


def test_no_password_is_told(receiver: Receiver):
    receiver.may_answer.set()
    notices.tell("default", Failed(message="no route to http://ada:hunter2@mlflow:5000/api"))
    ((_, told),) = receiver.told
    assert told["message"] == "no route to http://***@mlflow:5000/api"
    assert "hunter2" not in told["text"]


def test_what_has_interrupted_a_run_is_told_and_not_that_somebody_asked_it_to_end(
    receiver: Receiver,
):
    receiver.may_answer.set()
    with pytest.raises(RuntimeError), notices.telling("default"):
        raise RuntimeError("Failed to reach API at http://127.0.0.1:9/api/")
    with pytest.raises(SystemExit), notices.telling("default"):
        raise SystemExit(143)
    with notices.telling("default") as ended_in:
        ended_in.append(STATE)
    assert [(told["state"], told["message"]) for _, told in receiver.told] == [
        ("Crashed", "RuntimeError: Failed to reach API at http://127.0.0.1:9/api/"),
        ("Crashed", notices.ENDED),
        ("Waiting", STATE.message),
    ]


@flow
def ordered() -> None:
    """Never runs here."""


def a_run(**changes: Any) -> FlowRun:
    return FlowRun(flow_id=uuid.uuid4(), name="mine", run_count=1, **changes)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """No Prefect server, and a folder of a worker."""
    monkeypatch.chdir(tmp_path)
    settings = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(settings):
        yield


@pytest.mark.long
@pytest.mark.usefixtures("away")
def test_an_end_that_two_processes_see_is_told_once_and_a_second_try_ends_again(
    receiver: Receiver,
):
    receiver.may_answer.set()
    run = a_run()
    for state in (STATE, STATE, Cancelling(), Cancelling()):
        notices.tell_the_end(ordered, run, state)
    notices.tell_the_end(ordered, run.model_copy(update={"run_count": 2}), Crashed(message="x"))
    notices.tell_the_end(ordered, run.model_copy(update={"run_count": 3}), Crashed(message="x"))
    assert [told["state"] for _, told in receiver.told] == [
        "Waiting", "Cancelled", "Crashed", "Crashed"
    ]  # fmt: skip
    assert {told["page"] for _, told in receiver.told} == {
        f"http://127.0.0.1:9/runs/flow-run/{run.id}"
    }


@pytest.mark.usefixtures("away")
def test_an_end_is_told_where_it_cannot_be_noted(receiver: Receiver):
    receiver.may_answer.set()
    notices.TOLD.parent.mkdir()
    notices.TOLD.touch()  # Root may write into every folder, but not below a file.
    notices.tell_once(a_run(), Failed(message="No space left on device"))
    assert [told["message"] for _, told in receiver.told] == ["No space left on device"]


@pytest.mark.usefixtures("away")
def test_a_run_within_a_sweep_and_one_that_ordered_others_are_not_told(receiver: Receiver):
    receiver.may_answer.set()
    notices.tell_the_end(ordered, a_run(parent_task_run_id=uuid.uuid4()), STATE)
    notices.tell_the_end(ordered, a_run(), Completed(name="Ordered"))
    assert receiver.told == []


def test_nobody_is_told_where_no_address_is_named(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    receiver.may_answer.set()
    monkeypatch.delenv("RLHF_NOTIFY_URL")
    assert notices.tell("default", STATE) == ""
    assert receiver.told == []


def test_a_slow_receiver_is_left_alone_and_named_without_its_secret_path(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notices, "PATIENCE_SECONDS", 0.5)
    problem = notices.tell("default", Failed(message="x"))
    assert receiver.heard.wait(PATIENCE_SECONDS)
    assert not receiver.may_answer.is_set()
    assert problem.startswith("RLHF_NOTIFY_URL (127.0.0.1) was not told how the run ended: ")
    assert "s3cret" not in problem


@pytest.mark.parametrize("refuses", [True, False])
def test_a_receiver_that_is_down_or_refuses_is_named_too(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
):
    if refuses:
        server = ThreadingHTTPServer((servers.HOST, 0), BaseHTTPRequestHandler)
        threading.Thread(target=server.handle_request, daemon=True).start()
        port, why = server.server_port, "501"
    else:
        with socket.create_server((servers.HOST, 0)) as probe:
            port, why = probe.getsockname()[1], "ConnectError"
    monkeypatch.setenv("RLHF_NOTIFY_URL", f"http://user:pw@{servers.HOST}:{port}/s3cret")
    problem = notices.tell("default", STATE)
    assert why in problem
    assert "s3cret" not in problem
    assert "pw" not in problem


@pytest.mark.parametrize(
    ("address", "proxy", "said"),
    [
        ("http://[::1/s3cret", "", "(no address) was not told how the run ended: "),
        ("http://127.0.0.1:9/s3cret", "socks5://127.0.0.1:9", "(127.0.0.1) was not told "),
        ("http://127.0.0.1:9/s3cret", "what://127.0.0.1:9", "(127.0.0.1) was not told "),
    ],
)
def test_an_address_or_a_proxy_that_is_none_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    address: str, proxy: str, said: str,
):  # fmt: skip
    monkeypatch.setenv("RLHF_NOTIFY_URL", address)
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    problem = notices.tell("default", STATE)
    assert f"RLHF_NOTIFY_URL {said}" in problem
    assert "s3cret" not in problem
    assert "no response within" not in problem
    assert "Traceback" not in capfd.readouterr().err
