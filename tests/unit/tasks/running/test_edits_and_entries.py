"""Edits that hardly show, and entries of dvc.lock with more than was used."""

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.running.provenance import FalseEntryError, require_true_entries
from tasks.running.snapshot import ChangedMeanwhileError, take_snapshot
from tests.unit.tasks.running.test_provenance import keep_run, note, write_lock
from tests.unit.tasks.running.test_provenance import root as root


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("deps", r"rlhf/new\.py \(used md5 nothing, recorded 01234567\)"),
        ("params", r"params\.yaml: sft\.new \(used None, recorded 3\)"),
    ],
)
def test_an_entry_that_has_more_than_the_stage_used_is_false(root: Path, part: str, words: str):
    """dvc.yaml was edited as the stage ended: DVC records a dependency that nobody read."""
    note(root)
    write_lock(root)
    lock = YAML(typ="safe").load(root / "dvc.lock")
    if part == "deps":
        lock["stages"]["sft"]["deps"].append({"path": "rlhf/new.py", "md5": "01234567" * 4})
    else:
        lock["stages"]["sft"]["params"]["params.yaml"]["sft.new"] = 3
    YAML().dump(lock, root / "dvc.lock")
    keep_run(root, lock["stages"]["sft"])

    with pytest.raises(FalseEntryError, match=words):
        require_true_entries(root)


def test_an_edit_that_keeps_size_and_time_is_seen(root: Path):
    """As `cp -p`, `rsync -t` and unpacking an archive leave them."""
    path = root / "rlhf/sft.py"
    snapshot = take_snapshot(root, "sft", ("run", "sft"))
    before = path.stat()
    path.write_text("Code")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_ino) == (before.st_size, before.st_ino)

    with pytest.raises(ChangedMeanwhileError, match=r"rlhf/sft\.py \(md5 "):
        snapshot.require_unchanged(root)
