"""A thread that sends to MLflow what stages leave in their spools, while they run.

Whoever runs the pipeline has it tag what arrived, too, as soon as DVC has hashed a stage's outputs:
from then on MLflow's copy of a model is a link (`tasks.tracking.output_tags`), not only in the end.

Importing this costs nothing, as with `tasks.tracking.shipping`.
"""

import logging
import threading
from pathlib import Path

from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.shipping import ship_all
from tasks.workspace.dvc_lockfile import read_settled_lock, written_at

logger = logging.getLogger(__name__)


class Shipper:
    """A daemon thread that ships all spools of `root` every two seconds, until it is closed."""

    def __init__(self, root: Path, *, models: bool = True, every: float = 2.0) -> None:
        """Start the thread.

        Args:
            root: the workspace whose spools are shipped.
            models: False in a stage that ships by itself: models are left to `make sync`.
            every: seconds between two attempts.
        """
        self._root = root
        self._models = models
        self._every = every
        self._stop = threading.Event()
        self._delivered = False
        self._complaint = ""
        self._settled: dict[Path, int] = {}
        self._tagged: tuple[int | None, int] | None = None
        self._thread = threading.Thread(target=self._work, name="shipper", daemon=True)
        self._thread.start()

    def close(self, deadline_seconds: float) -> bool:
        """Ship once more, for at most `deadline_seconds`; returns whether everything was delivered.

        What did not arrive stays in the spool for the next shipper or `make sync`.
        """
        self._stop.set()
        self._thread.join(deadline_seconds)
        return self._delivered and not self._thread.is_alive()

    def _work(self) -> None:
        pause = self._every
        while not self._stop.wait(pause):
            # An unreachable server is retried less and less often, at most twice a minute.
            pause = self._every if self._round() else min(2 * pause, 30.0)
        self._delivered = self._round()

    def _round(self) -> bool:
        results = ship_all(self._root, models=self._models, settled=self._settled)
        troubles = [r.detail for r in results if r.state in ("refused", "unreachable")]
        if troubles and troubles[0] != self._complaint:
            self._complaint = troubles[0]
            logger.warning("MLflow did not accept everything; nothing is lost. %s", self._complaint)
        if self._models and not troubles and not self._stop.is_set():
            self._tag(arrived=sum(result.state == "complete" for result in results))
        return not troubles

    def _tag(self, *, arrived: int) -> None:
        """Tag what is new; what comes last is left to who closes the thread."""
        state = (written_at(self._root), arrived)
        if state == self._tagged or (locked := read_settled_lock(self._root)) is None:
            return
        try:
            tag_outputs(self._root, locked)
        except (OSError, ValueError, KeyError) as error:
            # A spool that was removed or damaged meanwhile. Whoever closes the thread tags again.
            logger.warning("Output hashes are not in MLflow yet. %r", error)
        self._tagged = state
