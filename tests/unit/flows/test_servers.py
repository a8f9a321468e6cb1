"""Ports, health, and one Prefect server over one history."""

import fcntl
import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from feedback.page.notify import local_prefect
from flows import servers
from flows.access import auth_string
from flows.serve import addresses, choose_port, deployment_page
from tests.stage_world import environment

ROOT = Path(__file__).resolve().parents[3]


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = {"/api/health": b"true", "/api/deployments/name/rlhf/rlhf": b'{"id": "d-1"}'}
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(known.get(self.path, b""))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def sleeper(tmp_path) -> Iterator[servers.Child]:
    command = [sys.executable, "-c", "import time; time.sleep(900)"]
    with servers.running("It", command, env={}, log=tmp_path / "it.log") as child:
        yield child


def test_a_port_that_somebody_listens_on_is_not_free(port):
    assert not servers.is_free(port)
    assert servers.free_port(port) != port


def test_a_free_port_is_kept():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    assert servers.free_port(free) == free


def test_a_default_port_that_is_taken_is_replaced_and_said(port, capsys):
    chosen = choose_port(None, port, "MLflow")
    assert chosen != port
    assert f"Port {port} is taken; MLflow listens on {chosen}" in capsys.readouterr().out


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(port):
    with pytest.raises(servers.ServerError, match=f"port {port} is taken"):
        choose_port(port, 1, "MLflow")


def test_a_port_that_the_other_server_has_is_taken(capsys):
    free = servers.any_free_port()
    with pytest.raises(servers.ServerError, match=f"port {free} is taken"):
        choose_port(free, 1, "MLflow", other=free)
    chosen = choose_port(None, free, "MLflow", other=free)
    assert chosen != free
    assert f"Port {free} is taken; MLflow listens on {chosen}" in capsys.readouterr().out


@pytest.mark.parametrize("port", [-1, 0, 65536, 70000])
def test_a_number_that_is_no_port_is_an_error(port):
    with pytest.raises(servers.ServerError, match=f"port {port}: expected 1 to 65535, for MLflow"):
        choose_port(port, 5000, "MLflow")


def test_a_second_command_in_one_folder_leaves_the_logs_of_the_first_alone(tmp_path):
    log = tmp_path / ".work/mlflow/server.log"
    log.parent.mkdir(parents=True)
    log.write_text("what the first has written\n")
    home = tmp_path / ".work/prefect"
    home.mkdir()
    with (home / "server.lock").open("w") as lock:
        lock.write("http://127.0.0.1:4200\nhttp://127.0.0.1:5000\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", "flows.serve"],
            cwd=tmp_path, env=environment(tmp_path, PYTHONPATH=str(ROOT)),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, "Prefect's server is already running at http://127.0.0.1:4200\n"
    )  # fmt: skip
    assert log.read_text() == "what the first has written\n"


@pytest.mark.parametrize("kept", ["", "\n"])
def test_an_empty_file_is_no_password(tmp_path, kept):
    path = tmp_path / "auth"
    path.write_text(kept)
    path.chmod(0o600)
    made = auth_string(tmp_path)
    assert len(made) >= 32
    assert auth_string(tmp_path) == made == path.read_text().strip()


def test_health_is_status_200(port):
    assert servers.is_healthy(f"http://127.0.0.1:{port}/api/health")
    assert not servers.is_healthy(f"http://127.0.0.1:{port}/other")
    assert not servers.is_healthy(f"http://127.0.0.1:{servers.free_port(1)}/api/health")


def test_health_is_asked_for_without_a_proxy(port, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert servers.is_healthy(f"http://127.0.0.1:{port}/api/health")


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path):
    log = tmp_path / "server.log"
    command = [sys.executable, "-c", "print('no such table')"]
    with servers.running("It", command, env={}, log=log) as child:
        server = servers.Server(child, servers.url(servers.free_port(1)), "/health")
        with pytest.raises(servers.ServerError, match=f"It has ended; see {log}"):
            server.wait()
    assert log.read_text() == "no such table\n"


def test_a_child_ends_with_its_context(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(900)"]
    with servers.running("It", command, env={}, log=tmp_path / "it.log") as child:
        child.check()
    assert child.process.returncode == -15


def test_a_second_server_over_one_history_is_refused_with_the_address_of_the_first(tmp_path):
    env = {"PREFECT_HOME": str(tmp_path)}
    with (tmp_path / "server.lock").open("w") as lock:
        lock.write("http://127.0.0.1:4200\nhttp://127.0.0.1:5000\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(
                servers.ServerError, match=r"already running at http://127\.0\.0\.1:4200"
            ),
            servers.prefect_server(4201, env),
        ):
            pytest.fail("two servers")
        assert servers.running_servers(env) == ("http://127.0.0.1:4200", "http://127.0.0.1:5000")
    assert servers.running_servers(env) is None, "the address of a server that has gone"


def test_whoever_looks_while_a_server_starts_finds_none_or_its_address(tmp_path, monkeypatch):
    env = {**os.environ, "PREFECT_HOME": str(tmp_path), "RLHF_MLFLOW_UI": "http://127.0.0.1:5000"}
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    (tmp_path / "server.lock").write_text("http://127.0.0.1:1\nof a server that was killed\n")
    found = set()

    def look(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code.co_filename == servers.__file__:
            found.add((servers.running_servers(env), local_prefect()))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        with servers.prefect_server(4201, env):
            pass
    finally:
        sys.settrace(before)
    both = ("http://127.0.0.1:4201", "http://127.0.0.1:5000")
    assert found == {(None, None), (both, f"{both[0]}/api")}
    assert servers.running_servers(env) is None


def test_no_server_has_ever_run(tmp_path):
    assert servers.running_servers({"PREFECT_HOME": str(tmp_path)}) is None


def test_the_page_of_the_deployment_is_known_once_it_is_registered(port, sleeper):
    assert deployment_page(servers.url(port), "", sleeper) == "/deployments/deployment/d-1"


def test_a_runner_that_ended_has_no_page(tmp_path):
    with servers.running(
        "The runner", [sys.executable, "-c", ""], env={}, log=tmp_path / "x"
    ) as child:
        child.process.wait()
        with pytest.raises(servers.ServerError, match="The runner has ended"):
            deployment_page(servers.url(servers.free_port(1)), "", child)


def test_all_three_addresses_are_said():
    said = addresses("http://p", "secret", "/d", "http://m")
    assert [line.split()[1] for line in said.splitlines()[:3]] == [
        "http://p/sign-in#secret",
        "http://m",
        "http://p/sign-in/d#secret",
    ]
