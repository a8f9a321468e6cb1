"""Background work of the server: announces complete rounds and pauses inaccurate annotators.

It also settles what waited for somebody whose token has expired.

Runs in its own thread, so that no request waits for Prefect. The database does the counting:
statistics over all labels in Python would block the interpreter for requests.
"""

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from feedback.page.notify import announce
from feedback.quality.annotators import QualityParams
from feedback.quality.answers import pause_inaccurate
from feedback.store.accounts import token_ended
from feedback.store.database import Database, now_ms
from feedback.store.rounds import settle_without

_log = logging.getLogger(__name__)


class Watch:
    """Checks the store when the bell rings, at most every `pause_s` and at least every `idle_s`.

    Idle checks resend what Prefect could not accept.
    """

    def __init__(
        self,
        database: Database,
        quality: QualityParams,
        *,
        prefect: Callable[[], str | None],
        page_url: str,
        pause_s: float = 2.0,
        idle_s: float = 30.0,
    ) -> None:
        """Starts nothing yet; each check calls `prefect` for the address of Prefect's API."""
        self._database, self._quality = database, quality
        self._prefect, self._page_url = prefect, page_url
        self._pause_s, self._idle_s = pause_s, idle_s
        self._tokens_seen_ms = 0
        self._bell, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread, which checks immediately."""
        self._bell.set()
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread after the current check."""
        self._stop.set()
        self._bell.set()
        self._thread.join()

    def ring(self) -> None:
        """Signals that something has changed."""
        self._bell.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.wait(self._idle_s)
            self._bell.clear()
            if not self._stop.is_set():
                self._look()
                self._stop.wait(self._pause_s)

    def _look(self) -> None:
        try:
            self.look()
        except SQLAlchemyError as error:
            # A full disk or a locked store passes; without this thread rounds would never end.
            reason = str(error).splitlines()[0]
            _log.warning("cannot check the store: %s; trying again", reason)

    def look(self) -> None:
        """Checks once; if Prefect cannot be reached, the next check tries again."""
        for name, reason in pause_inaccurate(self._database, self._quality).items():
            _log.warning("paused %s: %s", name, reason)
        self._settle_after_expiry()
        address = None
        try:
            address = self._prefect()
            if not address:
                return
            for key in announce(self._database, address, self._page_url):
                _log.info("round %s is complete; reported to %s", key, address)
        except (OSError, ValueError) as error:
            where = address or "Prefect"
            _log.warning("cannot report to %s that a round is complete: %s", where, error)

    def _settle_after_expiry(self) -> None:
        since, now = self._tokens_seen_ms, now_ms()
        with self._database.reading() as connection:
            ended = token_ended(connection, after_ms=since, by_ms=now)
        if ended:
            with self._database.writing() as connection:
                settle_without(connection)
        self._tokens_seen_ms = now
