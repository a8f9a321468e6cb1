"""The world of `benchmarks.fuzz_page`: a running page, what it is sent, what must hold then."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import h11
from sqlalchemy import Connection

from benchmarks.fuzz_page_requests import PEOPLE, Request
from feedback import __main__ as feedback_command
from feedback.formats.exchange import to_csv, to_trl
from feedback.formats.label_studio import from_tasks, to_tasks
from feedback.judgments import Pair, judgment_from_row, to_lines
from feedback.store import accounts, rounds
from feedback.store.database import Database
from feedback.store.standing import judgments_of, pairs_of
from feedback.store.submissions import WITHDRAWN
from preferences.records import CHOICES, pair_id

PAIRS = 6
OVERLAP = 2
REPLY_S = 20.0
"""A whole request has to be answered within this, on a busy machine too."""
SILENT_S = 0.05
"""How long a request that is not whole is given for a reply."""
_FIRST_LINE = b" HTTP/1.1\r\n"
_FORWARDED = b"X-Forwarded-Proto: https\r\nX-Forwarded-For: 203.0.113.7\r\n"
"""What a proxy adds."""


class Found(AssertionError):
    """Something that must hold does not."""


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
        _hold(code == 0, f"the server ended with {code}")
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
            _check_store(connection, number)
            _check_exports(connection)

    def _check_log(self) -> None:
        text = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        _hold("Traceback" not in text, f"the log has a traceback:\n{text[-2000:]}")

    def _check_export(self) -> None:
        """The command, on what the seed has left."""
        out = self._folder / "out"
        for form in ("judgments", "trl", "csv", "label-studio"):
            arguments = ["export", "--store", str(self.store), "--round", "r1", "--format", form]
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = feedback_command.main([*arguments, "--out", str(out)])
            _hold(code == 0, f"export --format {form} ended with {code}: {said.getvalue()}")


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
        _hold(status == 200, f"/health says {status}")

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
            _hold(not whole, f"no reply within {REPLY_S} s to {content!r}")
            return 0
        except ConnectionError:
            return 0
        if not head:
            _hold(not whole, f"closed without a reply to {content!r}")
            return 0
        status = int(head.split(b" ", 2)[1])
        _hold(100 <= status < 500, f"{status} for {content!r}")
        own = body.startswith(b"Invalid HTTP request received.")
        _hold(own or b"content-security-policy" in head, f"no policy in {head!r} for {content!r}")
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


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise Found(message)


def _pairs(name: str, count: int) -> list[Pair]:
    texts = [(f"request {name}/{n}", f"one {n}", f"two {n}") for n in range(count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round="r1", prompt=p, response_a=a, response_b=b)
        for p, a, b in texts
    ]


def _check_store(connection: Connection, example: int) -> None:
    """The file, and what it holds of the people of this example."""
    query = connection.exec_driver_sql
    _hold(query("PRAGMA quick_check").scalar() == "ok", "the file is damaged")
    _hold(query("PRAGMA foreign_key_check").first() is None, "a foreign key leads nowhere")
    mine = f"annotator_id LIKE '%-{example}'"
    assignments = list(query(f"SELECT * FROM assignments WHERE {mine}"))
    labels = list(query(f"SELECT * FROM labels WHERE {mine} ORDER BY label_id"))
    events = list(query(f"SELECT kind, annotator_id FROM events WHERE {mine} ORDER BY event_id"))
    for label in labels:
        _hold(label.choice in (*CHOICES, WITHDRAWN), f"{label}: choice")
        _hold(label.strength in (None, 1, 2, 3, 4), f"{label}: strength")
        _hold(label.strength is None or label.choice in ("a", "b"), f"{label}: strength")
        _hold("\x00" not in (label.reason or ""), f"{label}: reason")
        _hold(label.visible_ms is None or label.visible_ms >= 0, f"{label}: time")
    newest: dict[str, list[Any]] = {}
    for label in labels:
        newest.setdefault(label.assignment_id, []).append(label)
    for one in assignments:
        of = newest.get(one.assignment_id, [])
        _hold([label.revision for label in of] == list(range(1, len(of) + 1)), f"{of}: revisions")
        _hold(one.revision == len(of), f"{one}: revision, of {of}")
        answered = bool(of) and of[-1].choice != WITHDRAWN
        _hold((one.state == "done") == answered, f"{one}: state, of {of}")
    held = Counter(one.annotator_id for one in assignments if one.state == "open")
    _hold(max(held.values(), default=0) < 2, f"{held}: two pairs at once")
    _check_needs(connection)
    paused: set[str] = set()
    for kind, name in events:
        _hold(
            kind not in ("label", "undo", "serve") or name not in paused, f"{name}: {kind}, paused"
        )
        paused = (
            paused | {name} if kind == "pause" else paused - {name} if kind == "resume" else paused
        )
    written = sum(kind in ("label", "undo") for kind, _ in events)
    _hold(written == len(labels), f"{len(labels)} labels, {written} in the log")


def _check_needs(connection: Connection) -> None:
    """How many answers each pair still needs, worked out anew from the labels."""
    query = connection.exec_driver_sql
    standing = query(
        "SELECT a.pair_id, l.choice FROM assignments a JOIN labels l USING (assignment_id) "
        "JOIN round_pairs r ON r.pair_id = a.pair_id AND r.active = 1 "
        "WHERE a.purpose = 'label' AND a.state = 'done' AND l.revision = a.revision"
    )
    choices: dict[str, list[str]] = {}
    for key, choice in standing:
        choices.setdefault(key, []).append(choice)
    for key, needed in query("SELECT pair_id, needed FROM round_pairs WHERE active = 1"):
        given = choices.get(key, [])
        differ = len(given) == OVERLAP and len(set(given)) > 1
        _hold(needed == max(0, OVERLAP - len(given)) + differ, f"{key}: {needed}, of {given}")


def _check_exports(connection: Connection) -> None:
    """All four forms can be written, and read again."""
    pairs = pairs_of(connection, rounds.round_pair_ids(connection, "r1"), "r1")
    judgments = judgments_of(connection, pairs)
    by_id = {pair.pair_id: pair for pair in pairs}
    read = [judgment_from_row(json.loads(json.dumps(one.to_row()))) for one in judgments]
    _hold(read == judgments, "judgments are read as others")
    _hold(len(from_tasks(to_tasks(pairs, judgments), "r1")) == len(judgments), "Label Studio")
    preferred = sum(one.choice in ("a", "b") for one in judgments)
    _hold(len(to_lines(to_trl(judgments, by_id)).splitlines()) == preferred, "TRL")
    table = list(csv.reader(io.StringIO(to_csv(judgments, by_id))))
    _hold({len(row) for row in table} == {len(table[0])}, "cells of the csv")
    _hold(len(table) == len(judgments) + 1, "rows of the csv")
