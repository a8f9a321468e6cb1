"""A training that stands still at its second checkpoint while a test does something."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOOK = """
import os, sys, time
def heard(event, found):
    if event == "os.rename" and str(found[1]).endswith("/step-00000002"):
        while os.path.exists(os.environ["PAUSED"]):
            time.sleep(0.02)
sys.addaudithook(heard)
"""


@contextmanager
def paused(folder: Path) -> Iterator[dict[str, str]]:
    """The variables of a stage that stands still, its first checkpoint written, within the block.

    `folder` is one that nobody else uses; what is in it stays until the stage has ended.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    (folder / "paused").touch()
    try:
        yield {
            "PYTHONPATH": path,
            "PAUSED": str(folder / "paused"),
            "RLHF_CHECKPOINT_STEPS": "1",
        }
    finally:
        (folder / "paused").unlink()
