"""The background work of the page, with a server in Prefect's place and a store that fails."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from feedback.page.notify import announce
from feedback.page.watch import Watch
from feedback.quality.annotators import QualityParams
from feedback.store.withdrawing import held, withdraw
from tests.waiting import eventually

PAGE = "http://127.0.0.1:8765"
FULL = """CREATE TRIGGER full BEFORE INSERT ON events WHEN NEW.kind = 'announce'
BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"""


class Prefect(ThreadingHTTPServer):
    """Accepts events; `meanwhile` happens before it replies."""

    def __init__(self) -> None:
        self.rounds: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api"


class _Handler(BaseHTTPRequestHandler):
    server: Prefect

    def do_POST(self) -> None:
        (event,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.rounds.append(event["payload"]["round"])
        self.server.meanwhile()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def prefect() -> Iterator[Prefect]:
    server = Prefect()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def complete(desk: Any, make_pairs: Any) -> Any:
    """A store whose only round is complete."""
    desk.publish(make_pairs(2))
    desk.hire("ana")
    desk.answer("ana")
    desk.answer("ana")
    return desk


def test_a_round_that_is_undone_and_completed_while_prefect_is_told_is_told_again(
    complete: Any, prefect: Prefect
) -> None:
    def change_of_mind() -> None:
        prefect.meanwhile = lambda: None
        complete.undo("ana")
        complete.answer("ana", "right")

    prefect.meanwhile = change_of_mind
    announce(complete.database, prefect.api, PAGE)
    announce(complete.database, prefect.api, PAGE)
    announce(complete.database, prefect.api, PAGE)
    # Whoever heard of it the first time may have looked while an answer was missing.
    assert prefect.rounds == ["r1", "r1"]


def test_a_round_that_is_open_again_once_prefect_was_told_is_told_when_it_is_complete(
    complete: Any, prefect: Prefect
) -> None:
    prefect.meanwhile = lambda: complete.undo("ana") and None
    announce(complete.database, prefect.api, PAGE)
    prefect.meanwhile = lambda: None
    announce(complete.database, prefect.api, PAGE)
    assert prefect.rounds == ["r1"]
    complete.answer("ana")
    announce(complete.database, prefect.api, PAGE)
    assert prefect.rounds == ["r1", "r1"]


def test_a_round_from_which_somebody_was_withdrawn_meanwhile_is_told_again(
    complete: Any, prefect: Prefect
) -> None:
    def forget() -> None:
        prefect.meanwhile = lambda: None
        with complete.database.writing() as connection:
            meant = held(connection, person=lambda name, _: name == "ana", said=lambda _: False)
            withdraw(connection, meant)
        complete.hire("bo")
        complete.answer("bo")
        complete.answer("bo")

    prefect.meanwhile = forget
    announce(complete.database, prefect.api, PAGE)
    announce(complete.database, prefect.api, PAGE)
    assert prefect.rounds == ["r1", "r1"]


def test_a_pair_that_was_published_and_is_none_of_the_round_any_more_holds_up_nobody(
    desk: Any, make_pairs: Any, prefect: Prefect
) -> None:
    desk.hire("ana")
    desk.publish(make_pairs(2))
    desk.publish(make_pairs(1))
    announce(desk.database, prefect.api, PAGE)
    desk.answer("ana")
    announce(desk.database, prefect.api, PAGE)
    assert prefect.rounds == ["r1"]


def test_the_watch_lives_through_a_full_disk(complete: Any, prefect: Prefect) -> None:
    complete.sql(FULL)
    watch = Watch(
        complete.database,
        QualityParams(),
        prefect=lambda: prefect.api,
        page_url=PAGE,
        pause_s=0.01,
        idle_s=0.05,
    )
    watch.start()
    try:
        # Told again, so it has lived through not being able to note that it had told.
        eventually(lambda: len(prefect.rounds) > 1)
        complete.sql("DROP TRIGGER full")
        eventually(lambda: complete.sql("SELECT 1 FROM rounds WHERE notified_ms IS NOT NULL"))
        assert complete.sql("SELECT count(*) FROM events WHERE kind = 'announce'") == [(1,)]
    finally:
        watch.stop()


@pytest.mark.parametrize("address", ["http://[nowhere/api", "ftp://127.0.0.1/api"])
def test_the_watch_lives_through_an_address_that_is_none(complete: Any, address: str) -> None:
    watch = Watch(complete.database, QualityParams(), prefect=lambda: address, page_url=PAGE)
    watch.look()
    assert complete.sql("SELECT notified_ms FROM rounds") == [(None,)]
