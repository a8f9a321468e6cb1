"""The servers that people look at, on 127.0.0.1, as children of this process."""

import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any

from flows import processes
from flows.access import auth_string, authorization, make_private
from tasks.workspace.held import held, is_held

HOST = "127.0.0.1"
PREFECT_PORT = 4200
MLFLOW_PORT = 5000
PREFECT_HEALTH = "/api/health"
START_SECONDS = 600.0
"""Until we give up on a server; a first start fills a database and takes 10 seconds or more."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """A server that cannot be started or has ended; the message says where its log is."""


@dataclass(slots=True)
class Child:
    """A process of ours that runs beside us."""

    name: str
    command: list[str]
    env: Mapping[str, str]
    log: Path
    """What it writes, for when it does not work."""
    grace_seconds: float
    """From asking it to end to killing it."""
    process: "subprocess.Popen[bytes]"

    def start_again(self) -> None:
        """End what it has left behind, and run its command again; its log is continued."""
        processes.end(self.process, grace_seconds=self.grace_seconds)
        self.process = _start(self.command, self.env, self.log, os.O_APPEND)

    def check(self) -> None:
        """Do nothing while it runs.

        Raises:
            ServerError: it has ended.
        """
        if self.process.poll() is not None:
            raise ServerError(f"{self.name} has ended; see {self.log}")


@dataclass(frozen=True, slots=True)
class Server:
    """A child that listens on 127.0.0.1."""

    child: Child
    url: str
    """Its address, without a slash at the end."""
    health: str
    """Path that answers 200 once it works."""

    def wait(self) -> None:
        """Return when it works.

        Raises:
            ServerError: it ended, or took longer than `START_SECONDS`.
        """
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(self.url + self.health):
            self.child.check()
            if time.monotonic() > deadline:
                raise ServerError(f"{self.child.name} does not answer; see {self.child.log}")
            time.sleep(0.05)


@contextmanager
def running(
    name: str, command: list[str], *, env: Mapping[str, str], log: Path, grace_seconds: float = 10.0
) -> Iterator[Child]:
    """Run `command` in the current folder for as long as the context lasts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = _start(command, env, log, os.O_TRUNC)
    child = Child(name, command, dict(env), log, grace_seconds, process)
    try:
        yield child
    finally:
        processes.end(child.process, grace_seconds=grace_seconds)


def _start(
    command: list[str], env: Mapping[str, str], log: Path, mode: int
) -> "subprocess.Popen[bytes]":
    private = os.open(log, os.O_WRONLY | os.O_CREAT | mode, 0o600)
    with os.fdopen(private, "wb") as output:
        return processes.start(command, cwd=Path.cwd(), env=env, output=output)


@contextmanager
def prefect_server(port: int, env: Mapping[str, str]) -> Iterator[Server]:
    """Prefect's server and UI with the history in `PREFECT_HOME`; `wait` for it before use.

    Raises:
        ServerError: that history is already being served; SQLite does not support two servers.
    """
    home = Path(env["PREFECT_HOME"])
    make_private(home)
    address = url(port)
    path = home / "server.lock"
    with held(home / "server.starting"):
        refuse_a_second(env)
        lock = _hold(path, f"{address}\n{env.get('RLHF_MLFLOW_UI', '')}\n")
    with lock:
        # Made here, under the lock; the server and whoever talks to it read it from the file.
        auth_string(home)
        command = [sys.executable, "-m", "flows.guarded", "prefect", "--port", str(port)]
        log = home / "server.log"
        with running("Prefect's server", command, env=env, log=log) as child:
            yield Server(child, address, PREFECT_HEALTH)


def _hold(path: Path, text: str) -> IO[str]:
    """A file of this text, held until it is closed; nobody sees it before at its place."""
    draft = path.with_name(f".{path.name}.draft")
    lock = draft.open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(text)
    lock.flush()
    draft.replace(path)
    return lock


def running_servers(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Addresses of Prefect's server over this `PREFECT_HOME` and of MLflow's UI beside it.

    None where no server runs; the second is empty where no UI does.
    """
    path = Path(env["PREFECT_HOME"]) / "server.lock"
    if not is_held(path):
        return None
    prefect, mlflow = (path.read_text(encoding="utf-8") + "\n\n").split("\n")[:2]
    return prefect.strip(), mlflow.strip()


def refuse_a_second(env: Mapping[str, str]) -> None:
    """Do nothing where no Prefect server runs over this `PREFECT_HOME`.

    Raises:
        ServerError: one does.
    """
    if (running_at := running_servers(env)) is not None:
        raise _second(running_at[0])


def _second(running_at: str) -> ServerError:
    return ServerError(f"Prefect's server is already running at {running_at}")


def wait_for_prefect(address: str) -> None:
    """Return when the server that another process has started works.

    Raises:
        ServerError: it took longer than `START_SECONDS`.
    """
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(address + PREFECT_HEALTH):
        if time.monotonic() > deadline:
            raise ServerError(f"Prefect's server at {address} does not answer")
        time.sleep(0.1)


@contextmanager
def mlflow_server(port: int, env: Mapping[str, str], *, log: Path) -> Iterator[Server]:
    """MLflow's UI over the store at `MLFLOW_TRACKING_URI`; `wait` for it before use."""
    command = [sys.executable, "-m", "flows.guarded", "mlflow", "--port", str(port)]
    with running("MLflow's UI", command, env=env, log=log) as child:
        yield Server(child, url(port), "/health")


def url(port: int) -> str:
    """Address of a server of ours, without a slash at the end."""
    return f"http://{HOST}:{port}"


def free_port(wanted: int) -> int:
    """`wanted` where nobody listens there, else a port that is free."""
    return wanted if is_free(wanted) else any_free_port()


def any_free_port() -> int:
    """A port that nobody is likely to take before a server comes up on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_healthy(page: str) -> bool:
    """Whether a server answers with 200. Asks no proxy."""
    try:
        with _DIRECT.open(page, timeout=5) as response:
            return int(response.status) == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


def fetch_json(page: str, password: str = "", body: object = None) -> Any:
    """What a server responds, None where it has nothing (or cannot be reached).

    With a `body` it is a POST.
    """
    headers = {"Authorization": authorization(password), "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(page, data=data, headers=headers)
        with _DIRECT.open(request, timeout=5) as response:
            return json.load(response)
    except (OSError, http.client.HTTPException):
        return None
