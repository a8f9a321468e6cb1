"""MLflow's weights become links to DVC's objects, and only where they are the same bytes."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from tasks.tracking.shared_weights import WORTH_IT, share_with_cache

LARGE, OTHER, SMALL = b"a" * (WORTH_IT + 1), b"b" * (WORTH_IT + 1), b"{}"
OUTPUT = {"model.safetensors": LARGE, "member-1/model.safetensors": OTHER, "config.json": SMALL}


def digest(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """DVC's, with an output of three files; its name is in `hash_of`."""
    folder = tmp_path / "cache"
    for content in (*OUTPUT.values(), listing()):
        name = hash_of() if content == listing() else digest(content)
        write(folder / name[:2] / name[2:], content).chmod(0o444)
    return folder


def listing() -> bytes:
    files = [{"md5": digest(content), "relpath": path} for path, content in OUTPUT.items()]
    return json.dumps(files).encode()


def hash_of() -> str:
    return f"{digest(listing())}.dir"


def kept(cache: Path, content: bytes) -> Path:
    return cache / digest(content)[:2] / digest(content)[2:]


def test_large_files_are_linked_and_stay_when_either_side_goes(tmp_path: Path, cache: Path) -> None:
    logged = tmp_path / "logged"
    for path, content in OUTPUT.items():
        write(logged / path, content)

    assert share_with_cache(logged, cache, hash_of()) == len(LARGE) + len(OTHER)

    assert (logged / "model.safetensors").samefile(kept(cache, LARGE))
    assert (logged / "member-1/model.safetensors").samefile(kept(cache, OTHER))
    assert not (logged / "config.json").samefile(kept(cache, SMALL)), "not worth it"
    assert share_with_cache(logged, cache, hash_of()) == 0
    kept(cache, LARGE).unlink()
    assert (logged / "model.safetensors").read_bytes() == LARGE
    (logged / "member-1/model.safetensors").unlink()
    assert kept(cache, OTHER).read_bytes() == OTHER
    assert sorted(path.name for path in logged.rglob("*") if path.is_file()) == [
        "config.json", "model.safetensors",
    ]  # fmt: skip


def test_what_differs_or_is_missing_stays_as_it_is(tmp_path: Path, cache: Path) -> None:
    damaged = b"c" * len(LARGE)
    logged = write(tmp_path / "logged/model.safetensors", damaged).parent
    assert share_with_cache(logged, cache, hash_of()) == 0
    assert (logged / "model.safetensors").read_bytes() == damaged

    write(logged / "model.safetensors", LARGE)
    kept(cache, LARGE).unlink()
    assert share_with_cache(logged, cache, hash_of()) == 0
    assert share_with_cache(logged, cache, "0" * 32 + ".dir") == 0
    assert share_with_cache(logged, cache, digest(LARGE)) == 0
    assert [path.name for path in logged.iterdir()] == ["model.safetensors"]
    assert (logged / "model.safetensors").read_bytes() == LARGE


def test_without_hard_links_the_copy_stays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another device")

    monkeypatch.setattr(os, "link", refuse)
    logged = write(tmp_path / "logged/model.safetensors", LARGE).parent
    assert share_with_cache(logged, cache, hash_of()) == 0
    assert [path.name for path in logged.iterdir()] == ["model.safetensors"]
    assert (logged / "model.safetensors").read_bytes() == LARGE
