"""The machine's troubles in words, and what is kept of a stage that did not end well."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from tasks.running.machine_errors import advice, explain


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
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_lack_of_memory_says_what_to_lower(tmp_path: Path, error: Exception):
    said = explain(error, tmp_path)
    assert said is not None
    assert "out of memory" in said
    for key in ("micro_batch_size", "recompute_layers", "lora", "run.sharded"):
        assert f"`{key}`" in said


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(2, "no"), KeyError("y")])
def test_other_errors_are_not_the_machines(tmp_path: Path, error: Exception):
    assert explain(error, tmp_path) is None


def cached(root: Path, name: str, text: str) -> None:
    """An object as DVC's cache has it."""
    path = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_outputs_that_dvc_removed_come_back_with_the_command_that_is_named(tmp_path: Path):
    (tmp_path / "dvc.lock").write_text(
        "stages:\n  sft:\n    outs:\n    - {path: models/sft, md5: aa1.dir}\n"
        "    - {path: results/sft, md5: bb1.dir}\n"
    )
    for name, file in (("aa1.dir", "aa2"), ("bb1.dir", "bb2")):
        cached(tmp_path, name, f'[{{"md5": "{file}", "relpath": "x"}}]')
        cached(tmp_path, file, "x")
    words = ". To restore its last good outputs: dvc checkout models/sft results/sft"
    assert advice(tmp_path, "sft", "failed") == words
    assert advice(tmp_path, "sft", "interrupted") == advice(tmp_path, "base", "failed") == ""
    (tmp_path / "models/sft").mkdir(parents=True)
    assert advice(tmp_path, "sft", "stopped").endswith("dvc checkout results/sft")


@pytest.mark.parametrize("kind", ["variants", "runs"])
def test_in_a_workspace_no_outputs_are_offered_that_may_be_the_main_lines(
    tmp_path: Path, kind: str
):
    root = tmp_path / ".work" / kind / "mine"
    root.mkdir(parents=True)
    (root / "dvc.lock").write_text(
        "stages:\n  sft:\n    outs:\n    - {path: models/sft, md5: aa1}\n"
    )
    cached(root, "aa1", "x")
    assert advice(root, "sft", "failed") == ""


def test_outputs_that_the_cache_does_not_hold_whole_are_not_promised(tmp_path: Path):
    (tmp_path / "dvc.lock").write_text(
        "stages:\n  sft:\n    outs:\n    - {path: models/sft, md5: aa1.dir}\n"
        "    - {path: results/sft, md5: bb1.dir}\n    - {path: notes, md5: cc1}\n"
    )
    assert advice(tmp_path, "sft", "failed") == ""
    # Of one folder the list and one of two files, of the other all.
    cached(tmp_path, "aa1.dir", '[{"md5": "aa2", "relpath": "x"}, {"md5": "aa3", "relpath": "y"}]')
    cached(tmp_path, "aa2", "x")
    cached(tmp_path, "bb1.dir", '[{"md5": "aa2", "relpath": "x"}]')
    words = ". To restore its last good outputs: dvc checkout results/sft"
    assert advice(tmp_path, "sft", "failed") == words
    cached(tmp_path, "cc1", "x")
    assert advice(tmp_path, "sft", "failed") == f"{words} notes"
