"""Runs the page until it is stopped, and stops it so that everything is put away."""

import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from feedback.page.connections import connection_behind
from feedback.page.proxies import Proxies

LINES_A_MINUTE = 30
"""Most lines that the server logs, whatever strangers send it."""
STOP_S = 5
"""Requests that are still in progress get this long when the server stops."""


def run(app: FastAPI, listener: socket.socket, proxies: Proxies, ready: Callable[[], None]) -> None:
    """Serves until a signal says stop; calls `ready` once people can open the page.

    Raises:
        KeyboardInterrupt: the end, by whichever signal.
    """
    config = uvicorn.Config(
        app,
        http=connection_behind(proxies),
        # uvicorn would believe forwarded addresses of everybody on this machine.
        proxy_headers=False,
        ws="none",
        # Below errors, uvicorn logs a line for every malformed request.
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )
    limit = LogLimit()
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)
    _Server(config, ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class LogLimit(logging.Filter):
    """Lets so many records a minute through; the next one says how many were left out."""

    def __init__(
        self, a_minute: int = LINES_A_MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` counts seconds."""
        super().__init__()
        self._a_minute, self._clock = a_minute, clock
        self._since, self._shown, self._left_out = clock(), 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if self._clock() - self._since > 60:
            self._since, self._shown = self._clock(), 0
        if self._shown >= self._a_minute:
            self._left_out += 1
            return False
        self._shown += 1
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            text = f"{record.getMessage()} ({left_out} lines were left out before this one)"
            record.msg, record.args = text, None
        return True


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within the block, SIGTERM and a closed terminal end the program as Ctrl-C does.

    By default they would end it on the spot, and leave the newest labels in the store's log.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    # Who starts the server with `nohup` wants it to outlive the terminal.
    if (hung_up := signal.getsignal(signal.SIGHUP)) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, hung_up)


def _interrupt(number: int, _: FrameType | None) -> None:
    # Once is enough: a second signal must not cut short what the first one has begun.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _terminate(_: int, __: FrameType | None) -> None:
    # uvicorn ends its requests in order at SIGTERM, and does not know this signal.
    signal.raise_signal(signal.SIGTERM)
