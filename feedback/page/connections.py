"""Connections to the page: closed when a request does not arrive, and counted by address.

uvicorn waits for ever for the rest of a request, and accepts as many connections as there are file
descriptors: half-sent requests from one machine could take them all.
"""

import asyncio
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from feedback.page.proxies import NO_PROXIES, Proxies

REQUEST_S = 10.0
"""From its first byte, or from the opening of the connection, until a request must be complete."""
BODY_BYTES = 262_144
"""A body of which so much has arrived since may take as long again: a round is megabytes."""
PER_ADDRESS = 128
"""Connections from one address at a time. A browser has a few, for seconds after each request."""

_log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1, with both limits."""

    proxies = NO_PROXIES
    """Their connections are many people's, and not counted."""
    _deadline: asyncio.TimerHandle | None = None
    _arrived = 0
    """Bytes of a body since the clock was started."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes the connection at once if its address has too many."""
        super().connection_made(transport)
        host = self.client[0] if self.client else None
        ours = (one for one in self.connections if isinstance(one, Connection))
        count = sum(one.client is not None and one.client[0] == host for one in ours)
        if count > PER_ADDRESS and not self.proxies.named(host or ""):
            _log.warning("%s has more than %d connections; closed one", host, PER_ADDRESS)
            transport.abort()
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Starts the clock at the first byte of a request."""
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._expect_nothing()
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY:
            self._arrived += len(data)
            if self._arrived >= BODY_BYTES:
                self._expect_nothing()
                self._expect_request()

    def handle_events(self) -> None:
        """Lets the clock run until the request is complete."""
        super().handle_events()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._expect_nothing()
        elif self._deadline is None:
            self._expect_request()

    def _expect_request(self) -> None:
        self._arrived = 0
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connection_behind(proxies: Proxies) -> type[Connection]:
    """The same, for a page behind these proxies."""
    return type("ProxiedConnection", (Connection,), {"proxies": proxies})
