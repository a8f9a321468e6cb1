"""Outputs are on the disk before dvc.lock can name them."""

import os
from pathlib import Path

import pytest

from tasks.running.staging import Staging


def test_outputs_are_on_the_disk_before_they_take_their_place_and_their_names_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    staging = Staging(tmp_path, tmp_path / ".work/probe/staging")
    (staging.directory("models/probe") / "model.safetensors").write_text("weights")
    staging.file("data/rows.jsonl").write_text("row")
    done: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(("synced", Path(f"/proc/self/fd/{descriptor}").readlink().as_posix()))
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append(("renamed", str(target)))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    staging.publish()

    for out, file in (("models/probe", "/model.safetensors"), ("data/rows.jsonl", "")):
        target = tmp_path / out
        draft = target.with_name(f".{target.name}.publishing")
        renamed = done.index(("renamed", str(target)))
        assert ("synced", f"{draft}{file}") in done[:renamed]
        assert ("synced", str(draft)) in done[:renamed]
        assert ("synced", str(target.parent)) in done[renamed:]
