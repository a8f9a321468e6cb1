"""The running page against connections that no browser makes: half-sent, too many, malformed."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from feedback.page.connections import PER_ADDRESS, REQUEST_S
from tests.integration.test_feedback_http import ROOT, feedback
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.long

HALF_SENT = {
    "nothing": b"",
    "half a line": b"POST /api/lo",
    "half the headers": b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n",
    "headers without the body": b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n",
    "half the body": b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b'Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"token": ',
    "a whole request, then half of one": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he",
}
GET = b"GET /login HTTP/1.1\r\nHost: %s\r\n\r\n"
UPGRADE = (
    b"GET /api/task HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@dataclass
class Page:
    """The running page."""

    port: int
    store: Path
    lines: list[str]

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 30, (source, 0))

    def says(self, request: bytes, source: str = "127.0.0.1") -> int:
        """The status of the reply."""
        with self.connect(source) as connection:
            connection.sendall(request)
            reply = connection.recv(65536)
        return int(reply.split(b" ", 2)[1])

    def serves(self) -> bool:
        """Whether it replies; a connection beyond the limit is closed without a word."""
        try:
            return self.says(GET % b"127.0.0.1") == 200
        except (ConnectionError, IndexError):
            return False


def listening(pid: int) -> int:
    """The port at which a process of ours listens."""
    sockets = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:
            return int(local.split(":")[1], 16)
    raise AssertionError("it does not listen")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    yield from served(tmp_path_factory.mktemp("page") / "feedback.db")


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page behind a proxy at 127.0.0.5 that signs people in."""
    options = ("--behind-proxy", "127.0.0.5", "--sign-in-header", "X-Forwarded-User")
    store = tmp_path_factory.mktemp("behind") / "feedback.db"
    yield from served(store, *options, "--allow-host", "label.example")


def served(store: Path, *options: str) -> Iterator[Page]:
    feedback(store, "token", "ana")
    command = [sys.executable, "-m", "feedback", "serve", "--store", str(store), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--prefect-url", "", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stdout.readline().split(": ", 1)[1]
    port = listening(process.pid) if options else int(said.split("127.0.0.1:")[1].split()[0])
    assert said.startswith("https://label.example " if options else "http://127.0.0.1:")
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(process.stderr,))
    reader.start()
    yield Page(port, store, lines)
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0
    reader.join()
    assert [line for line in lines if "Traceback" in line or "Error" in line] == []


def test_half_sent_requests_are_closed_after_seconds(page: Page) -> None:
    opened = {name: page.connect() for name in (*HALF_SENT, "one byte a second")}
    began = time.monotonic()
    for name, sent in HALF_SENT.items():
        opened[name].sendall(sent)
    slow = b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 600
    left = dict(opened)
    took: dict[str, float] = {}
    while left and time.monotonic() - began < 6 * REQUEST_S:
        for name, connection in list(left.items()):
            connection.settimeout(0.01)
            try:
                if name == "one byte a second":
                    passed = int(time.monotonic() - began)
                    connection.sendall(slow[passed : passed + 1])
                if connection.recv(65536) == b"":
                    raise ConnectionError
            except TimeoutError:
                continue
            except ConnectionError:
                took[name] = time.monotonic() - began
                del left[name]
        time.sleep(0.05)
    for connection in opened.values():
        connection.close()
    assert set(took) == set(opened)
    assert max(took.values()) < 4 * REQUEST_S
    assert page.says(GET % b"127.0.0.1") == 200


def test_a_request_that_arrives_in_pieces_within_the_time_is_served(page: Page) -> None:
    with page.connect() as connection:
        for piece in (b"GET /login HT", b"TP/1.1\r\nHost: 127.0", b".0.1\r\n\r\n"):
            connection.sendall(piece)
            time.sleep(0.3)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_one_address_cannot_take_all_connections(page: Page) -> None:
    opened = [page.connect() for _ in range(PER_ADDRESS)]
    try:
        time.sleep(0.5)
        with page.connect() as beyond, suppress(ConnectionError):
            # Closed at once, not served.
            beyond.sendall(GET % b"127.0.0.1")
            assert beyond.recv(65536) == b""
        # Another address is served as ever.
        with page.connect("127.0.0.2") as other:
            other.sendall(GET % b"127.0.0.1")
            assert other.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for connection in opened:
            connection.close()
    eventually(page.serves)


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b"[::1",
        b"::1]",
        b"[::1]x",
        b"[::1%25lo]",
        b"a b",
        b"user@127.0.0.1",
        b"127.0.0.1/x",
        b"127.0.0.1?",
        b"127.0.0.1:x",
        b"127.0.0.1:123456",
        b"127.0.0.1\r\nHost: 127.0.0.1",
        b"\xff",
    ],
)
def test_a_broken_host_is_a_bad_request(page: Page, host: bytes) -> None:
    assert page.says(GET % host) == 400


def test_a_request_without_host_is_a_bad_request(page: Page) -> None:
    assert page.says(b"GET /login HTTP/1.1\r\n\r\n") == 400


@pytest.mark.parametrize("origin", [b"http://[::1", b"//", b"null", b"http://127.0.0.1:x"])
def test_a_broken_origin_is_another_site(page: Page, origin: bytes) -> None:
    body = b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: %s\r\nContent-Length: 0\r\n\r\n"
    assert page.says(body % origin) == 403


def test_a_websocket_upgrade_is_a_bad_request(page: Page) -> None:
    assert page.says(UPGRADE) == 400


def test_an_offer_of_http_2_is_passed_over(page: Page) -> None:
    offer = (
        b"127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA"
    )
    assert page.says(GET % offer) == 200


@pytest.mark.parametrize(
    "path",
    [
        b"/static/%00",
        b"/static/" + b"a" * 3000,
        b"/%ff%fe",
        b"/static/%ff",
        b"/static/%2e%2e/x",
        b"//evil.example/",
        b"/api/task/../lead",
        b"*",
        b"/static/annotate.js/",
        b"/?" + b"x" * 9000,
    ],
)
def test_odd_paths_are_no_error_of_the_server(page: Page, path: bytes) -> None:
    assert page.says(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path) < 500


@pytest.mark.slow
def test_a_thousand_guesses_are_slowed_down_and_leave_a_short_log(page: Page) -> None:
    statuses: list[int] = []
    transport = httpx.HTTPTransport(local_address="127.0.0.3")
    address = f"http://127.0.0.1:{page.port}"
    began = time.monotonic()
    with httpx.Client(base_url=address, transport=transport, timeout=60) as client:
        for number in range(998):
            guess = f"guess-{number}"
            if number % 2:
                statuses.append(client.post("/api/login", json={"token": guess}).status_code)
            else:
                headers = {"Authorization": f"Bearer {guess}"}
                statuses.append(client.post("/api/task", headers=headers).status_code)
        # Where the wait was over just now, the first of two is looked at.
        for number in range(998, 1000):
            last = client.post("/api/login", json={"token": f"guess-{number}"})
            statuses.append(last.status_code)
    tried = statuses.count(401)
    # Five at once, then after 1, 2, 4, ... seconds.
    seconds = time.monotonic() - began
    assert 5 <= tried <= 5 + max(1, seconds).__ceil__().bit_length() + 1
    assert statuses.count(429) == 1000 - tried
    assert last.status_code == 429
    assert int(last.headers["retry-after"]) >= 1
    guesses = [line for line in page.lines if "wrong token" in line]
    assert len(guesses) == tried
    assert all("127.0.0.3" in line and "guess-" not in line for line in guesses)
    # An address that one writes oneself is none, as long as no proxy is named.
    forged = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    with httpx.Client(base_url=address, transport=httpx.HTTPTransport(), timeout=60) as client:
        client.post("/api/login", json={"token": "guess"}, headers=forged)
    eventually(lambda: sum("wrong token" in line for line in page.lines) == tried + 1)
    assert not [line for line in page.lines if "203.0.113.7" in line]
    # Nobody else has to wait.
    token = feedback(page.store, "token", "ben").stdout.strip()
    assert httpx.post(f"{address}/api/login", json={"token": token}).status_code == 200


PROXIED = (
    b"GET / HTTP/1.1\r\nHost: label.example\r\nX-Forwarded-Proto: https\r\n"
    b"X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-User: ana\r\n\r\n"
)


def test_only_the_named_proxy_says_who_somebody_is(behind: Page) -> None:
    assert behind.says(PROXIED, "127.0.0.5") == 200
    for other in ("127.0.0.1", "127.0.0.6"):
        assert behind.says(PROXIED, other) == 403
    assert behind.says(PROXIED.replace(b"https", b"http"), "127.0.0.5") == 400
    assert behind.says(PROXIED.replace(b"label.example", b"evil.example"), "127.0.0.5") == 421


def test_a_proxy_may_open_as_many_connections_as_it_has_people(behind: Page) -> None:
    opened = [behind.connect("127.0.0.5") for _ in range(PER_ADDRESS + 5)]
    try:
        time.sleep(0.5)
        assert behind.says(PROXIED, "127.0.0.5") == 200
    finally:
        for connection in opened:
            connection.close()


def test_a_header_of_the_proxy_is_nothing_where_no_proxy_is_named(page: Page) -> None:
    assert page.says(PROXIED.replace(b"label.example", b"localhost")) == 303
