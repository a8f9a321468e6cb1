"""How long the rest of a request may take: longer where a body keeps arriving."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI, Request

from feedback.page import connections

SIZE = 8_000


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server that says how long a body was, and waits half a second for each 1,000 bytes."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    monkeypatch.setattr(connections, "BODY_BYTES", 1_000)
    app = FastAPI()

    @app.post("/")
    async def length(request: Request) -> int:
        return len(await request.body())

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=connections.Connection, log_config=None, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield int(listener.getsockname()[1])
    server.should_exit = True
    thread.join()


def reply_to(port: int, a_time: int) -> bytes:
    """The reply to a body of which so many bytes come every fifth of a second."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n".encode())
        try:
            for _ in range(0, SIZE, a_time):
                connection.sendall(b"x" * a_time)
                time.sleep(0.2)
            return connection.recv(65536)
        except OSError:
            return b""


def test_a_large_body_that_keeps_arriving_is_taken(port: int) -> None:
    began = time.monotonic()
    reply = reply_to(port, 1_000)
    assert time.monotonic() - began > 3 * 0.5
    assert reply.startswith(b"HTTP/1.1 200")
    assert reply.endswith(str(SIZE).encode())


def test_one_that_trickles_is_not_waited_for(port: int) -> None:
    began = time.monotonic()
    assert reply_to(port, 100) == b""
    assert time.monotonic() - began < 5
