"""What a clone holds does not depend on the settings of the git that clones."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = (".gitattributes", "params.yaml", "dvc.yaml", "Makefile")


def git(*arguments: str, folder: Path) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command, english = ["git", *identity, *arguments], {**os.environ, "LC_ALL": "C"}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=english)


def test_line_ends_survive_a_clone_with_autocrlf(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    for name in KEPT:
        shutil.copy(ROOT / name, origin / name)
    git("init", folder=origin)
    git("add", ".", folder=origin)
    git("commit", "-m", "all", folder=origin)

    git("clone", "-c", "core.autocrlf=true", str(origin), "theirs", folder=tmp_path)

    for name in KEPT:
        assert (tmp_path / "theirs" / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_a_merge_mixes_no_entry_of_dvc_lock_out_of_two_sides(tmp_path: Path) -> None:
    """DVC would take outputs of the old code for those of the new, and run nothing."""
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    lock = tmp_path / "dvc.lock"
    before = (ROOT / "dvc.lock").read_text()
    stage = before[: before.index("\n  base:")]
    hashes = re.findall(r" md5: (\w+)", stage)
    code, output = hashes[0], hashes[-1]
    lock.write_text(before)
    git("init", "--initial-branch", "theirs", folder=tmp_path)
    git("add", ".", folder=tmp_path)
    git("commit", "-m", "before", folder=tmp_path)
    git("branch", "ours", folder=tmp_path)
    lock.write_text(before.replace(code, "0" * 32))
    git("commit", "-am", "other code", folder=tmp_path)
    git("checkout", "ours", folder=tmp_path)
    ours = before.replace(output, "1" * 32)
    lock.write_text(ours)
    git("commit", "-am", "other params", folder=tmp_path)

    with pytest.raises(subprocess.CalledProcessError) as refused:
        git("merge", "theirs", folder=tmp_path)

    assert b"Merge conflict in dvc.lock" in refused.value.stdout
    assert lock.read_text() == ours
