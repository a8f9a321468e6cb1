"""What a stage says on the screen: its own lines, and warnings of the libraries."""

import logging
import sys

from rlhf.bits import obstacle
from tasks.running.stage import Stage
from tasks.running.terminal import harmless

_log = logging.getLogger(__name__)


class _Harmless(logging.Formatter):
    """A warning may quote a server, or somebody's data."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_to_screen() -> None:
    """Show on stderr what concerns people."""
    screen = logging.StreamHandler(sys.stderr)
    screen.addFilter(_concerns_people)
    screen.setFormatter(_Harmless("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[screen])


def say_if_not_portable(stage: Stage) -> None:
    """Say why this process cannot compute the bits that params.yaml asks for."""
    if stage.params.run.bits == "portable" and stage.bits != "portable":
        _log.warning(
            "%s: run.bits is portable, but this is %s: the results are its own, and other machines "
            "give others",
            stage.name,
            obstacle(),
        )


def _concerns_people(record: logging.LogRecord) -> bool:
    """What stages log, and warnings of the libraries; those set their own levels."""
    ours = record.name.partition(".")[0] in ("tasks", "__main__")
    return ours or record.levelno >= logging.WARNING
