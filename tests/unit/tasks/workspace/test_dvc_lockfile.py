"""dvc.lock read beside a DVC that writes it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.workspace import dvc_lockfile
from tasks.workspace.dvc_lockfile import (
    CONFLICT,
    EMPTY,
    DamagedLockError,
    parsed,
    read_lock,
    read_settled_lock,
)

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


def test_an_entry_that_many_commits_have_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of many rounds are hundreds of files of hundreds of entries, nearly all alike."""
    read: list[str] = []

    class Counted(YAML):
        def load(self, text: Any) -> Any:
            read.append(text)
            return super().load(text)

    monkeypatch.setattr(dvc_lockfile, "YAML", Counted)
    entry = LOCK.split("stages:\n")[1].replace("0123", "3210")
    rounds = [entry.replace("  sft:", f"  ppo@r{number}:", 1) for number in range(1, 9)]
    commits = [LOCK + "".join(rounds[:number]) for number in range(1, 9)]
    for commit in commits:
        # As git shows a file, it has no line end at its end.
        assert list(parsed(commit.rstrip("\n")))[-1] == f"ppo@r{commits.index(commit) + 1}"
    assert sum(map(len, read)) <= len(commits[-1])


@pytest.mark.parametrize(
    "text",
    [
        LOCK,
        f"# a comment\n{LOCK}",
        LOCK.replace("    cmd: python", "    cmd: |\n\n      python"),
        LOCK.replace("  sft:\n", "  base: &one\n    cmd: a\n  more: *one\n  sft:\n"),
        LOCK.replace("stages:\n", "stages:\n  other:\n    cmd: a\n  'sft@1.5':\n    cmd: b\n"),
        "stages:\n  sft:\n    cmd: a\nschema: '2.0'\n",
    ],
)
def test_what_is_read_by_entry_is_what_yaml_says_of_the_whole(text: str) -> None:
    assert parsed(text) == YAML(typ="safe").load(text)["stages"]


def test_a_stage_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    written(tmp_path, LOCK + LOCK.split("stages:\n")[1], seconds_ago=5)
    with pytest.raises(DamagedLockError):
        read_lock(tmp_path)


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
         f"not valid YAML (line 3); {CONFLICT}"),
        (b"- sft\n", "expected a mapping with an entry for each of its stages"),
        (b"stages:\n  sft:\n", "expected a mapping with an entry for each of its stages"),
        (b"stages: {}\n# caf\xe9\n", "not UTF-8 (byte 16)"),
        (b"", EMPTY),
        (b"\n", EMPTY),
    ],
)  # fmt: skip
def test_a_damaged_one_is_named_in_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "dvc.lock").write_bytes(content)
    with pytest.raises(DamagedLockError) as refused:
        read_lock(tmp_path)
    assert str(refused.value) == f"{tmp_path / 'dvc.lock'}: {problem}"
