"""What the server does beside answering requests: announce complete rounds, pause poor annotators.

A thread of its own, so that nobody waits for Prefect. It lets the database count: statistics over
all labels in Python would take the interpreter from those who answer requests.
"""

import logging
import threading
from collections.abc import Callable

from feedback.database import Database
from feedback.notify import announce
from feedback.quality import QualityParams
from feedback.records import pause_inaccurate

_log = logging.getLogger(__name__)


class Watch:
    """Looks at the store when the bell rings, at most every `pause_s`, and at least every `idle_s`.

    The idle look sends again what Prefect could not take.
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
        """Starts nothing yet. `prefect` is asked at each look for the address of Prefect's API."""
        self._database, self._quality = database, quality
        self._prefect, self._page_url = prefect, page_url
        self._pause_s, self._idle_s = pause_s, idle_s
        self._bell, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feedback-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread, which looks at once."""
        self._bell.set()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the look it is at."""
        self._stop.set()
        self._bell.set()
        self._thread.join()

    def ring(self) -> None:
        """Says that something has changed."""
        self._bell.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.wait(self._idle_s)
            self._bell.clear()
            if not self._stop.is_set():
                self.look()
                self._stop.wait(self._pause_s)

    def look(self) -> None:
        """One look; what fails because Prefect is away is tried again at the next one."""
        for name, reason in pause_inaccurate(self._database, self._quality).items():
            _log.warning("paused %s: %s", name, reason)
        address = self._prefect()
        if not address:
            return
        try:
            for key in announce(self._database, address, self._page_url):
                _log.info("round %s is complete; told %s", key, address)
        except OSError as error:
            _log.warning("cannot tell %s that a round is complete: %s", address, error)
