"""The machine's troubles in words, and what is kept of a stage that did not end well."""

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tasks.troubles import advice, explain


def os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_the_file_and_the_room_there_is(tmp_path: Path, number: int):
    said = explain(os_error(number, tmp_path / "new/model.bin"), tmp_path)
    assert said is not None
    total = shutil.disk_usage(tmp_path).total / 1e6
    assert said.startswith(f"{tmp_path}/new/model.bin: the disk is full (")
    assert f" MB free of {total:.1f} MB in {tmp_path})" in said


@pytest.mark.parametrize(
    "text",
    ["I/O error: No space left on device (os error 28)", "(sqlite3) database or disk is full"],
)
def test_libraries_that_say_it_in_their_own_words_are_understood(tmp_path: Path, text: str):
    said = explain(RuntimeError(text), tmp_path)
    assert said is not None
    assert said.startswith(f"{tmp_path}: the disk is full")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, number: int):
    said = explain(os_error(number, tmp_path / "x"), tmp_path)
    assert said == f"{tmp_path}/x: cannot be written or read: {os.strerror(number)}"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"),
    ],
)
def test_a_lack_of_memory_says_what_to_lower(tmp_path: Path, error: Exception):
    said = explain(error, tmp_path)
    assert said is not None
    assert "out of memory" in said
    assert "`micro_batch_size`" in said


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(2, "no"), KeyError("y")])
def test_other_errors_are_not_the_machines(tmp_path: Path, error: Exception):
    assert explain(error, tmp_path) is None


def cache(root: Path, content: str, ending: str = "") -> str:
    """Put an object into DVC's cache and return its hash."""
    digest = hashlib.md5(content.encode()).hexdigest() + ending
    path = root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return digest


def test_outputs_that_dvc_removed_come_back_with_the_command_that_is_named(tmp_path: Path):
    file = cache(tmp_path, "weights")
    folder = cache(tmp_path, f'[{{"md5": "{file}", "relpath": "w"}}]', ".dir")
    (tmp_path / "dvc.lock").write_text(
        f"stages:\n  sft:\n    outs:\n    - {{path: models/sft, md5: {folder}}}\n"
        f"    - {{path: results/sft, md5: {file}}}\n"
    )
    words = ". Its last good outputs come back with: dvc checkout models/sft results/sft"
    assert advice(tmp_path, "sft", "failed") == words
    assert advice(tmp_path, "sft", "interrupted") == advice(tmp_path, "base", "failed") == ""
    (tmp_path / "models/sft").mkdir(parents=True)
    assert advice(tmp_path, "sft", "stopped").endswith("dvc checkout results/sft")


def test_no_command_is_named_that_would_bring_nothing_back(tmp_path: Path):
    file = "9a0364b9e99bb480dd25e1f0284c8555"
    folder = cache(tmp_path, f'[{{"md5": "{file}", "relpath": "w"}}]', ".dir")
    (tmp_path / "dvc.lock").write_text(
        f"stages:\n  sft:\n    outs:\n    - {{path: models/sft, md5: {folder}}}\n"
    )
    assert advice(tmp_path, "sft", "bad_input") == ""
