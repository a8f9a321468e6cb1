"""The world of `benchmarks.fuzz_page`: a running page, what it is sent, what must hold then."""

import contextlib
import io
import itertools
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import h11

from benchmarks.fuzz_page_requests import PEOPLE, Request
from benchmarks.fuzz_page_store import OVERLAP, check_exports, check_store, hold
from feedback import __main__ as feedback_command
from feedback.judgments import Pair
from feedback.store import accounts, rounds
from feedback.store.database import Database
from preferences.records import pair_id

PAIRS = 6
REPLY_S = 20.0
"""A whole request has to be answered within this, on a busy machine too."""
SILENT_S = 0.05
"""How long a request that is not whole is given for a reply."""
_FIRST_LINE = b" HTTP/1.1\r\n"
_FORWARDED = b"X-Forwarded-Proto: https\r\nX-Forwarded-For: 203.0.113.7\r\n"
"""What a proxy adds."""


class World:
    """A server process, its store, and the people of the current example."""

    def __init__(self, folder: Path, *, behind_proxy: bool) -> None:
        """Starts nothing yet."""
        self._folder, self._behind_proxy = folder, behind_proxy
        self.store = folder / "feedback.db"
        self._database = Database(self.store)
        self._numbers = itertools.count()
        self._log: IO[bytes] = (folder / "log.txt").open("wb")
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self.statuses: Counter[int] = Counter()

    def start(self) -> None:
        """Starts the server."""
        with self._database.writing() as connection:
            # A third vote can always be given: `needed` then depends on the answers alone.
            for name in ("p1", "p2", "p3"):
                accounts.new_token(connection, name)
            rounds.publish(connection, _pairs("first", PAIRS), overlap=OVERLAP)
            gold = _pairs("gold", 3)
            rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
        command = [sys.executable, "-m", "feedback", "serve", "--store", str(self.store)]
        self._port = _free_port()
        command += ["--port", str(self._port), "--prefect-url", ""]
        command += ["--gold-rate", "0.2", "--repeat-rate", "0.2"]
        if self._behind_proxy:
            command += ["--behind-proxy", "127.0.0.0/8", "--allow-host", "localhost"]
            command += ["--sign-in-header", "X-Forwarded-User"]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"PREFECT_API_URL": ""},
        )
        assert self._process.stdout is not None
        assert "The labelling page" in self._process.stdout.readline()

    def stop(self) -> None:
        """Stops the server in order; it must not have died, and its store is one file then."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(60)
        hold(code == 0, f"the server ended with {code}")
        self._check_export()

    def kill(self) -> None:
        """Ends the server, if it still runs, and closes the store."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._database.close()
        self._log.close()

    def send_and_check(self, sent: Sequence[Sequence[Request]]) -> None:
        """One example, with people, pairs and an address of its own."""
        number = next(self._numbers)
        line = _FORWARDED if self._behind_proxy else b""
        example = _Example(number, self._database, self._port, line)
        for volley in sent:
            self.statuses.update(example.fire(volley))
        example.alive()
        self._check_log()
        with self._database.reading() as connection:
            check_store(connection, number)
            check_exports(connection)

    def _check_log(self) -> None:
        text = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        hold("Traceback" not in text, f"the log has a traceback:\n{text[-2000:]}")

    def _check_export(self) -> None:
        """The command, on what the seed has left."""
        out = self._folder / "out"
        for form in ("judgments", "trl", "csv", "label-studio"):
            arguments = ["export", "--store", str(self.store), "--round", "r1", "--format", form]
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = feedback_command.main([*arguments, "--out", str(out)])
            hold(code == 0, f"export --format {form} ended with {code}: {said.getvalue()}")


class _Example:
    def __init__(self, number: int, database: Database, port: int, line: bytes) -> None:
        self._address = f"127.1.{number // 250 % 250}.{number % 250 + 1}"
        self._port, self._line = port, line
        self._marks: dict[str, dict[bytes, bytes]] = {}
        with database.writing() as connection:
            rounds.publish(connection, _pairs(f"{number}", PAIRS), overlap=OVERLAP)
            for one in PEOPLE:
                name = f"{one}-{number}"
                token = accounts.new_token(
                    connection, name, role="lead" if one == "lea" else "annotator"
                )
                session = accounts.open_session(connection, name)
                person = accounts.by_session(connection, session)
                assert person is not None
                marks = {"TOKEN": token, "SESSION": session, "CSRF": person.csrf or ""}
                marks |= {"NAME": name, "ASSIGNMENT": "0" * 32}
                marks |= {other.upper(): f"{other}-{number}" for other in PEOPLE}
                self._marks[one] = {
                    f"@{key}@".encode(): value.encode() for key, value in marks.items()
                }
        for one in PEOPLE[:2]:
            self.fire([Request(one, _TASK)])

    def fire(self, volley: Sequence[Request]) -> list[int]:
        """Sends the requests at once; the statuses of the replies, 0 where none came."""
        with contextlib.ExitStack() as stack:
            opened = [stack.enter_context(self._connected()) for _ in volley]
            contents = [self._filled(one) for one in volley]
            for connection, one, content in zip(opened, volley, contents, strict=True):
                _send(connection, one, content)
            return [
                self._reply(connection, one.who, content)
                for connection, one, content in zip(opened, volley, contents, strict=True)
            ]

    def alive(self) -> None:
        """The page still works."""
        (status,) = self.fire([Request("ana", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")])
        hold(status == 200, f"/health says {status}")

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), REPLY_S, (self._address, 0))

    def _filled(self, request: Request) -> bytes:
        content = request.content.replace(_FIRST_LINE, _FIRST_LINE + self._line, 1)
        for mark, value in self._marks[request.who].items():
            content = content.replace(mark, value)
        _, _, body = content.partition(b"\r\n\r\n")
        return content.replace(b"@LENGTH@", str(len(body)).encode())

    def _reply(self, connection: socket.socket, who: str, content: bytes) -> int:
        whole = _is_whole(content)
        connection.settimeout(REPLY_S if whole else SILENT_S)
        try:
            head, body = _read(connection, head_only=content.startswith(b"HEAD "))
        except TimeoutError:
            hold(not whole, f"no reply within {REPLY_S} s to {content!r}")
            return 0
        except ConnectionError:
            return 0
        if not head:
            hold(not whole, f"closed without a reply to {content!r}")
            return 0
        status = int(head.split(b" ", 2)[1])
        hold(100 <= status < 500, f"{status} for {content[:500]!r}")
        # What is no HTTP at all never reaches the page: uvicorn's own reply has no length.
        own = status == 400 and b"content-length" not in head
        hold(
            own or b"content-security-policy" in head,
            f"no policy in {head!r} for {content[:500]!r}",
        )
        found = re.search(rb'"assignment_id":"([0-9a-f]{32})"', body)
        if found is not None:
            self._marks[who][b"@ASSIGNMENT@"] = found[1]
        return status


_TASK = (
    b"POST /api/task HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer @TOKEN@\r\n"
    b"Content-Length: 0\r\n\r\n"
)


def _send(connection: socket.socket, request: Request, content: bytes) -> None:
    begin = 0
    with contextlib.suppress(ConnectionError):  # Refused before it was sent as a whole.
        for cut in (*request.cuts, len(content)):
            connection.sendall(content[begin:cut])
            begin = max(begin, cut)


def _is_whole(content: bytes) -> bool:
    """Whether a server has to reply to these bytes, according to a reader of its own."""
    if not content:
        return False
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(content)
    try:
        while (event := reader.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.EndOfMessage):
                return True
    except h11.RemoteProtocolError:
        return True
    return False


def _read(connection: socket.socket, *, head_only: bool) -> tuple[bytes, bytes]:
    """Head and body of the first reply; empty if the connection is closed without one."""
    head, got = _read_head(connection, b"")
    while head.startswith(b"HTTP/1.1 100"):
        head, got = _read_head(connection, got)
    if head_only or not head:
        return head, b""
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    while length is None or len(got) < int(length[1]):
        piece = connection.recv(65_536)
        if not piece and length is not None:
            raise ConnectionError
        if not piece:  # uvicorn's own reply has no length, and ends with the connection.
            break
        got += piece
    return head, got


def _read_head(connection: socket.socket, got: bytes) -> tuple[bytes, bytes]:
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65_536)
        if not piece:
            return b"", b""
        got += piece
    head, _, rest = got.partition(b"\r\n\r\n")
    return head, rest


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _pairs(name: str, count: int) -> list[Pair]:
    texts = [(f"request {name}/{n}", f"one {n}", f"two {n}") for n in range(count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round="r1", prompt=p, response_a=a, response_b=b)
        for p, a, b in texts
    ]
