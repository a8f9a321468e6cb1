"""The application under `benchmarks.fuzz_page_steps`, and the pairs that it hands out."""

import asyncio
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from benchmarks.fuzz_page_store import hold
from feedback.judgments import Pair
from feedback.page.server import ServerParams, create_app
from feedback.store.assignments import ServeParams
from feedback.store.database import Database
from preferences.records import pair_id

MANY_CHECKS = ServeParams(gold_rate=0.2, repeat_rate=0.2, repeat_gap=1)


def _pairs(name: str, count: int) -> list[Pair]:
    texts = [(f"{name} {n}", f"{name} one {n}", f"{name} two {n}") for n in range(count)]
    return [
        Pair(pair_id=pair_id(p, a, b), round="r1", prompt=p, response_a=a, response_b=b)
        for p, a, b in texts
    ]


PAIRS, GOLD = _pairs("request", 14), _pairs("known", 3)


class Server:
    """The application, made once: each example gives it a store, and so does each restart."""

    def __init__(self) -> None:
        """Starts with an empty store."""
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        self.database = self._new()
        self._app = create_app(self.database, ServerParams(), serve=MANY_CHECKS)
        transport = httpx.ASGITransport(self._app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self._loop = asyncio.Runner()
        self.statuses: Counter[int] = Counter()

    def renew(self) -> None:
        """Another store, and nothing remembered of the one before."""
        self.database.close()
        self.database = self._app.state.database = self._new()

    def restart(self) -> None:
        """The same store, closed and opened."""
        self.database.close()
        self.database = self._app.state.database = Database(self._path)

    def send(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The reply, which must be one that the page may give to anybody."""
        reply: httpx.Response = self._loop.run(self._client.request(method, path, **given))
        self._client.cookies.clear()
        self.statuses[reply.status_code] += 1
        hold(reply.status_code < 500, f"{reply.status_code} for {path}")
        hold("content-security-policy" in reply.headers, f"no policy for {path}")
        return reply

    def _new(self) -> Database:
        self._path = Path(self._folder.name) / f"{next(self._numbers)}.db"
        return Database(self._path)
