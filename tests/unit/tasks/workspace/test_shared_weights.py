"""Weights become links to DVC's objects, and only where they are the same bytes."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tasks.workspace import shared_weights
from tasks.workspace.held import held
from tasks.workspace.shared_weights import (
    WORTH_IT,
    share_idle_outputs,
    share_outputs,
    share_with_cache,
)

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

    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == len(
        LARGE
    ) + len(OTHER)

    assert (logged / "model.safetensors").samefile(kept(cache, LARGE))
    assert (logged / "member-1/model.safetensors").samefile(kept(cache, OTHER))
    assert not (logged / "config.json").samefile(kept(cache, SMALL)), "not worth it"
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == 0
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
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == 0
    assert (logged / "model.safetensors").read_bytes() == damaged

    write(logged / "model.safetensors", LARGE)
    kept(cache, LARGE).unlink()
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == 0
    assert (
        share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest="0" * 32 + ".dir") == 0
    )
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=digest(OTHER)) == 0, (
        "a file, not a folder's list"
    )
    assert [path.name for path in logged.iterdir()] == ["model.safetensors"]
    assert (logged / "model.safetensors").read_bytes() == LARGE


def test_a_damaged_object_does_not_replace_the_copy_that_could_mend_it(
    tmp_path: Path, cache: Path
) -> None:
    logged = write(tmp_path / "logged/model.safetensors", LARGE).parent
    kept(cache, LARGE).chmod(0o644)
    kept(cache, LARGE).write_bytes(b"c" * len(LARGE))
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == 0
    assert (logged / "model.safetensors").read_bytes() == LARGE


def test_without_hard_links_the_copy_stays(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another device")

    monkeypatch.setattr(os, "link", refuse)
    logged = write(tmp_path / "logged/model.safetensors", LARGE).parent
    assert share_with_cache(logged, cache, drafts=tmp_path / "drafts", digest=hash_of()) == 0
    assert [path.name for path in logged.iterdir()] == ["model.safetensors"]
    assert (logged / "model.safetensors").read_bytes() == LARGE


def test_only_large_files_of_the_outputs_are_linked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two that MLflow's copies would be linked to, the one that is as large as that."""
    monkeypatch.setattr(shared_weights, "LARGE", len(LARGE) + 1)
    root, larger = tmp_path / "root", LARGE + b"a"
    objects = Path(shutil.copytree(cache, root / ".dvc/cache/files/md5"))
    write(kept(objects, larger), larger).chmod(0o444)
    files = [
        {"md5": digest(larger), "relpath": "model.safetensors"},
        {"md5": digest(OTHER), "relpath": "member-1/model.safetensors"},
    ]
    listed = json.dumps(files).encode()
    name = f"{digest(listed)}.dir"
    write(objects / name[:2] / name[2:], listed)
    outs = f"[{{path: models/sft, md5: {name}}}, {{path: results/gone, md5: {hash_of()}}}]"
    write(root / "dvc.lock", f"stages: {{sft: {{outs: {outs}}}}}".encode())
    model = write(root / "models/sft/model.safetensors", larger)
    member = write(root / "models/sft/member-1/model.safetensors", OTHER)

    assert share_outputs(root) == len(larger)
    assert model.samefile(kept(objects, larger))
    assert not member.samefile(kept(objects, OTHER))
    assert share_outputs(root) == 0


@pytest.fixture
def large_model(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with the output of `hash_of`, of which one file is large enough."""
    monkeypatch.setattr(shared_weights, "LARGE", len(LARGE))
    shutil.copytree(cache, tmp_path / "root/.dvc/cache/files/md5")
    lock = f"stages: {{sft: {{outs: [{{path: models/sft, md5: {hash_of()}}}]}}}}"
    write(tmp_path / "root/dvc.lock", lock.encode())
    write(tmp_path / "root/models/sft/model.safetensors", LARGE)
    return tmp_path / "root"


def test_what_is_damaged_stops_nobody(large_model: Path) -> None:
    (large_model / "models/gone.safetensors").symlink_to("nowhere")
    lock = (large_model / "dvc.lock").read_text()
    no_text = lock.replace(hash_of(), "7")
    for damaged in ("<<<<<<< HEAD\n", lock[:40], "stages: []", no_text):
        (large_model / "dvc.lock").write_text(damaged)
        assert share_outputs(large_model) == 0
    (large_model / "dvc.lock").write_text(lock)
    listed = kept(large_model / ".dvc/cache/files/md5", listing()).with_suffix(".dir")
    whole = listed.read_bytes()
    listed.chmod(0o644)
    listed.write_bytes(whole[:30])
    assert share_outputs(large_model) == 0
    listed.write_bytes(whole)
    assert share_outputs(large_model) == len(LARGE)


def test_a_kill_between_two_steps_leaves_the_output_as_it_was(
    large_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = large_model / "models/sft/model.safetensors"

    def kill(*_: object) -> None:
        there = [path.name for path in (large_model / "models").rglob("*")]
        assert there == ["sft", "model.safetensors"], "SIGKILL leaves what is there now"
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            share_outputs(large_model)
    assert [path.name for path in (large_model / "models").rglob("*")] == [
        "sft", "model.safetensors",
    ]  # fmt: skip
    assert model.stat().st_nlink == 1
    assert share_outputs(large_model) == len(LARGE)
    assert [path.name for path in (large_model / "models").iterdir()] == ["sft"]


def test_two_that_link_the_same_folder_at_once_do_not_mix_up_its_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged, drafts = tmp_path / "logged", tmp_path / "drafts"
    for path, content in OUTPUT.items():
        write(logged / path, content)
    hashed = shared_weights.md5
    begun: list[Path] = []

    def another_comes_by(path: Path) -> str:
        begun.append(path)
        if len(begun) == 1:
            share_with_cache(logged, cache, hash_of(), drafts=drafts)
        return hashed(path)

    monkeypatch.setattr(shared_weights, "md5", another_comes_by)
    share_with_cache(logged, cache, hash_of(), drafts=drafts)
    for path, content in OUTPUT.items():
        assert (logged / path).read_bytes() == content
    assert list(drafts.iterdir()) == []


def test_beside_a_stage_nobody_else_links_outputs(large_model: Path) -> None:
    (large_model / ".work").mkdir()
    with held(large_model / ".work/stage.lock"):
        assert share_idle_outputs(large_model) == 0
    assert share_idle_outputs(large_model) == len(LARGE)
