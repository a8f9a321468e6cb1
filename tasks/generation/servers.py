"""Servers of model folders: those that the user names, or one that the stage starts and ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tasks.generation.client import GENERATION, Client, open_directly
from tasks.own_data.servers import COMMAND, COMMAND_VARIABLE, URL_VARIABLE, server_command
from tasks.params.loading import RunParams
from tasks.running.outcome import StageEnd
from tasks.running.staging import model_hash
from tasks.workspace.processes import die_with

_ERROR = re.compile(r"(?<![\w.])[\w.]*(?:Error|Exception): \S.*")
"""The last line of a traceback, behind whatever a logger writes before it."""

START_SECONDS = 1800.0
"""A large model is loaded and compiled in minutes."""
END_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""


@contextlib.contextmanager
def serving(folder: Path, run: RunParams, log: Path) -> Iterator[Client]:
    """A client of a server that has the folder's model.

    Args:
        folder: the model folder, relative to the repository.
        run: its precision is that of a server that is started here.
        log: file for what such a server prints.

    Raises:
        StageEnd: there is none, or none with this model.
    """
    addresses = os.environ.get(URL_VARIABLE, "").split()
    if addresses:
        yield _named(addresses, folder)
        return
    with started(folder, run, log) as client:
        yield client


def _named(addresses: list[str], folder: Path) -> Client:
    wanted = [folder.as_posix(), str(folder.resolve()), model_hash(folder)]
    found: list[str] = []
    for address in addresses:
        if urlsplit(address).scheme not in ("http", "https"):
            raise StageEnd("bad_input", f"{URL_VARIABLE}: {address!r}, expected an http(s) address")
        names = Client(address, "").models()
        if name := next((names[name] for name in wanted if name in names), None):
            return Client(address, name)
        found += sorted(names)
    raise StageEnd(
        "bad_input",
        f"{URL_VARIABLE}: no server has {folder} under its path or as {wanted[-1]}; "
        f"found {', '.join(found) or 'no model'}",
    )


@contextlib.contextmanager
def started(
    folder: Path,
    run: RunParams,
    log: Path,
    *,
    key: str = GENERATION,
    options: Sequence[str] = (),
) -> Iterator[Client]:
    """A client of a server that is started here and ends with the context.

    Args:
        folder: the model folder, relative to the repository.
        run: its precision and its seed are the server's.
        log: file for what it prints.
        key: of params.yaml that asks for a server.
        options: further ones of its command.

    Raises:
        StageEnd: it cannot be started, or ends by itself.
    """
    port = _free_port()
    command = [*_command(folder, run, port, key), *options]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}/health", log)
        try:
            yield Client(f"http://127.0.0.1:{port}/v1", folder.as_posix(), key=key)
        except StageEnd as end:
            if process.poll() is None:
                raise
            # Its own last words say more than what a client has seen.
            raise _died(process, log) from end
    finally:
        _end(process)


def _command(folder: Path, run: RunParams, port: int, key: str) -> list[str]:
    command = server_command()
    if command is None:
        named = os.environ.get(COMMAND_VARIABLE, COMMAND)
        raise StageEnd(
            "bad_input",
            f"{key} is server, but there is no command {named!r} to start one "
            f"({COMMAND_VARIABLE}{f'; {URL_VARIABLE} names none' if key == GENERATION else ''})",
        )
    own = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--served-model-name": folder.as_posix(),
        "--dtype": run.precision,
        "--seed": str(run.seed),
        # Not the sampling settings that some folders bring along.
        "--generation-config": "vllm",
    }
    # vLLM takes the model right behind `serve` only, and refuses options before it.
    at = command.index("serve") + 1 if "serve" in command else len(command)
    command[at:at] = [folder.as_posix()]
    return [*command, *(text for pair in own.items() for text in pair)]


def _wait_until_ready(process: "subprocess.Popen[bytes]", health: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _died(process, log, " before it was ready")
        with contextlib.suppress(OSError), open_directly(urllib.request.Request(health), 5):
            return
        time.sleep(0.2)
    raise StageEnd("failed", f"the server was not ready within {START_SECONDS:g} s; see {log}")


def _died(process: "subprocess.Popen[bytes]", log: Path, when: str = "") -> StageEnd:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # Of several processes the first error is the cause; vLLM's last lines are about leaks.
    errors = [found[0] for line in lines if (found := _ERROR.search(line))]
    return StageEnd(
        "failed",
        f"the server ended with {process.returncode}{when}; "
        f"{log}: {next(iter([*errors, *lines[-1:]]), 'empty')}",
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the server and whatever it started."""
    for wish in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, wish)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
