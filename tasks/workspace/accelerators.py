"""The NVIDIA GPUs of this machine: a stage takes one for itself, or waits until one is free.

Runs of other workspaces, or of other checkouts of this user, are other processes: the kernel keeps
a lock for each GPU, and lets go of it on any death.
"""

import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from tasks.params.loading import ParamsError
from tasks.workspace.held import held, take

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_SECONDS = 0.5

_log = logging.getLogger(__name__)


@contextmanager
def sole_accelerator(device: str) -> Iterator[str | None]:
    """Hold one GPU, the only one that CUDA shows in this process; yields which, None for none.

    Args:
        device: `run.device` of params.yaml.

    Raises:
        ParamsError: the folder of the locks is somebody else's.
    """
    names = [] if device == "cpu" else _visible()
    if not names:
        yield None
        return
    folder, started = _folder(), time.monotonic()
    while True:
        for name in names:
            if (lock := take(folder / f"gpu-{name.replace('/', '-')}.lock")) is not None:
                with lock, _showing(name):
                    if (waited := time.monotonic() - started) > 1:
                        _log.info("waited %.0f s for GPU %s", waited, name)
                    yield name
                return
        time.sleep(LOOK_SECONDS)


@contextmanager
def several_accelerators(device: str, count: int) -> Iterator[None]:
    """For whoever starts so many processes that each take a GPU: only one does so at a time.

    Two that had taken half of the GPUs each would wait for each other.

    Args:
        device: `run.device` of params.yaml.
        count: how many processes this machine will have.

    Raises:
        ParamsError: there are fewer GPUs, or the folder of the locks is somebody else's.
    """
    names = [] if device == "cpu" else _visible()
    if not names:
        yield
        return
    if len(names) < count:
        raise ParamsError(f"run.processes is {count}, but CUDA shows {len(names)} GPUs here")
    with held(_folder() / "several.lock"):
        yield


def _folder() -> Path:
    """The folder of this user's locks.

    Raises:
        ParamsError: somebody else has made it, and could keep all GPUs or lead us elsewhere.
    """
    folder = Path(tempfile.gettempdir()) / f"rlhf-rounds-{os.getuid()}"
    with suppress(FileExistsError):  # Be it a link that leads nowhere.
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ParamsError(
            f"{folder}, where locks of GPUs are kept, is not a folder of this user; have it "
            "removed, or set TMPDIR to a folder of your own"
        )
    return folder


def _visible() -> list[str]:
    """As CUDA names them: those that the user lets it see, else all."""
    chosen = os.environ.get(VISIBLE)
    if chosen is None:
        return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    names = (name.strip() for name in chosen.split(","))
    # CUDA itself stops at the first that is no device.
    return list(takewhile(lambda name: name and not name.startswith("-"), names))


@contextmanager
def _showing(name: str) -> Iterator[None]:
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before
