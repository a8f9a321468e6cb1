"""Links to weights that a process was killed over keep them on the disk until they are found."""

import os
import time
from pathlib import Path

import pytest

from tasks.pruning import leftovers
from tasks.pruning.leftovers import drafts
from tasks.workspace import shared_weights
from tasks.workspace.shared_weights import DRAFTS


class KilledError(Exception):
    """Stands for the kill, after which nothing is tidied up."""


def test_a_link_that_a_kill_left_goes_after_a_day_and_frees_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, kept = tmp_path / "copy", tmp_path / "kept"
    copy.write_bytes(b"weights")
    kept.write_bytes(b"weights")

    def killed(_: Path) -> str:
        raise KilledError

    monkeypatch.setattr(shared_weights, "md5", killed)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    with pytest.raises(KilledError):
        shared_weights._linked(copy, kept, "0a", tmp_path / DRAFTS)
    monkeypatch.undo()
    (left,) = (tmp_path / DRAFTS).iterdir()
    kept.unlink()  # As DVC does once no kept run needs the object.
    assert left.read_bytes() == b"weights", "the disk has it still"
    assert list(drafts(tmp_path, [tmp_path])) == [], "somebody may be at it"

    later = time.time() + leftovers.DRAFT_SECONDS + 1
    monkeypatch.setattr(leftovers.time, "time", lambda: later)
    os.utime(left, (later, later))  # It has the time of the weights, whatever that is.
    (found,) = drafts(tmp_path, [tmp_path])
    assert (found.name, found.size) == (f"{DRAFTS.as_posix()}/{left.name}", 7)
    found.remove()

    assert list((tmp_path / DRAFTS).iterdir()) == []
