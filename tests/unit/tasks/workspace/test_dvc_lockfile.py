"""dvc.lock read beside a DVC that writes it."""

import os
import time
from pathlib import Path

import pytest

from tasks.workspace.dvc_lockfile import DamagedLockError, read_lock, read_settled_lock

LOCK = """schema: '2.0'
stages:
  sft:
    cmd: python -m tasks.sft
    outs:
    - path: models/sft
      md5: 0123456789abcdef0123456789abcdef.dir
"""


def written(root: Path, text: str, *, seconds_ago: float) -> Path:
    """A dvc.lock that was last written to then."""
    lock = root / "dvc.lock"
    lock.write_text(text)
    then = time.time() - seconds_ago
    os.utime(lock, (then, then))
    return lock


def test_a_lock_at_rest_is_read(tmp_path: Path) -> None:
    assert read_settled_lock(tmp_path) is None, "there is none"
    written(tmp_path, LOCK, seconds_ago=5)
    assert read_settled_lock(tmp_path) == read_lock(tmp_path)
    assert read_lock(tmp_path)["sft"].outs == {"models/sft": "0123456789abcdef0123456789abcdef.dir"}


def test_a_lock_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """Also where its size and its time have not changed."""
    other = "fedcba9876543210fedcba9876543210"
    for digest in (other, "0123456789abcdef0123456789abcdef"):
        lock = LOCK.replace("0123456789abcdef0123456789abcdef", digest)
        os.utime(written(tmp_path, lock, seconds_ago=5), (1e9, 1e9))
        assert read_lock(tmp_path)["sft"].outs == {"models/sft": f"{digest}.dir"}


def test_one_that_was_just_written_to_may_be_a_part(tmp_path: Path) -> None:
    written(tmp_path, LOCK, seconds_ago=-60)  # However long we take until we read it.
    assert read_settled_lock(tmp_path) is None


@pytest.mark.parametrize(
    "part",
    [
        "schema",
        "schema: '2.0'\nstages:",
        "stages:\n  sft:",
        "stages:\n  sft:\n    outs:\n    - md5: 0",
    ],
)
def test_a_part_that_makes_no_sense_is_none(tmp_path: Path, part: str) -> None:
    written(tmp_path, part, seconds_ago=5)
    assert read_settled_lock(tmp_path) is None


def test_one_that_changes_while_it_is_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = written(tmp_path, LOCK, seconds_ago=5)
    read = Path.read_text

    def read_and_write(path: Path, *args: str, **kwargs: str) -> str:
        text = read(path, *args, **kwargs)
        lock.write_text("")
        return text

    monkeypatch.setattr(Path, "read_text", read_and_write)
    assert read_settled_lock(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LOCK.replace("  sft:", "<<<<<<< HEAD\n  sft:").encode(),
         "not valid YAML (line 3); is it a merge conflict?"),
        (b"- sft\n", "expected a mapping with an entry for each of its stages"),
        (b"stages:\n  sft:\n", "expected a mapping with an entry for each of its stages"),
        (b"stages: {}\n# caf\xe9\n", "not UTF-8 (byte 16)"),
    ],
)  # fmt: skip
def test_a_damaged_one_is_named_in_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "dvc.lock").write_bytes(content)
    with pytest.raises(DamagedLockError) as refused:
        read_lock(tmp_path)
    assert str(refused.value) == f"{tmp_path / 'dvc.lock'}: {problem}"
