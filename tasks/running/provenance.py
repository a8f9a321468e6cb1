"""What a result was really made from, and entries of `dvc.lock` that disagree.

DVC reads params and hashes dependencies a moment after a stage has last read them. An edit in that
moment is recorded as if the stage had used it. So a stage notes what it used
(`.work/<stage>/made_from.json`), and the next run compares the note with the entry that DVC wrote
for the same outputs. A note that agrees is deleted, by the next stage or by the driver: newer code
that changes no byte would differ from it, once pulled, though nobody edited anything.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tasks.params.loading import flatten
from tasks.running.snapshot import PARAMS, Snapshot, same
from tasks.workspace.dvc_cache import cache_folder, output_hash
from tasks.workspace.dvc_lockfile import DamagedLockError, hashes, read_entries
from tasks.workspace.dvc_rwlock import dvc_processes
from tasks.workspace.files import read_json, write_json
from tasks.workspace.work_folder import checkpoint_folders

RECORD = "made_from.json"
REMEDY = (
    "An edit as the stage ended made DVC record the wrong version. `make doctor FIX=1` removes the "
    "entry, so that the stage runs again"
)


class FalseEntryError(ValueError):
    """`dvc.lock` records something false about the result of an earlier stage."""


@dataclass(frozen=True, slots=True)
class FalseEntry:
    """An entry of dvc.lock that differs from what the stage used."""

    stage: str
    differences: tuple[str, ...]
    entry: Mapping[str, Any]

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.stage}: dvc.lock is wrong about its result: {'; '.join(self.differences)}"

    def fix(self, root: Path) -> str:
        """Remove the entry from dvc.lock and DVC's run cache; the stage will run again.

        Raises:
            BlockingIOError: a DVC command is running.
        """
        if dvc_processes(root):
            raise BlockingIOError("a dvc command is running here; wait for it to end")
        # Imported here: only this function writes dvc.lock, in DVC's own layout.
        from dvc.utils.serialize import modify_yaml  # noqa: PLC0415

        with modify_yaml(root / "dvc.lock") as lock:
            del lock["stages"][self.stage]
        for path in list(_kept_runs(root, self.entry)):
            path.unlink()
            if not list(path.parent.iterdir()):  # DVC fails on an empty folder.
                path.parent.rmdir()
        _record(root, self.stage).unlink()
        return "removed from dvc.lock and DVC's run cache; make repro runs it again"


def entry_digest(root: Path, stage: str) -> str:
    """A hash of a stage's entry in dvc.lock; empty where there is none."""
    entry = read_entries(root).get(stage)
    return "" if entry is None else _digest(entry)


def note_made_from(root: Path, snapshot: Snapshot, entry_before: str) -> dict[str, str]:
    """Note what the outputs, which have just been published, were made from; their hashes.

    Args:
        root: the repository.
        snapshot: the stage when it started.
        entry_before: `entry_digest` at the start; while it is unchanged, DVC has recorded nothing.
    """
    outs = {out: output_hash(root / out) for out in snapshot.definition.outs}
    deps = {path: state.md5 for path, state in snapshot.files.items()}
    content = {"params": snapshot.params, "deps": deps, "outs": outs, "entry_before": entry_before}
    write_json(_record(root, snapshot.stage), content)
    return outs


def forget_note(root: Path, stage: str) -> None:
    """Delete the note of an earlier run, whose outputs no longer exist."""
    _record(root, stage).unlink(missing_ok=True)


def drop_recorded_checkpoints(root: Path) -> None:
    """Delete the checkpoints of finished stages whose outputs `dvc.lock` has by now.

    Until then they are needed: DVC removes outputs that it could not record before it runs the
    stage again, say because it was killed while it hashed them, or had no space to copy them.
    """
    try:
        entries = read_entries(root)
    except DamagedLockError:
        return  # Whoever builds on it says so.
    for path in (root / ".work").glob(f"*/{RECORD}"):
        note, entry = read_json(path), entries.get(path.parent.name)
        if note is not None and entry is not None and hashes(entry.get("outs")) == note["outs"]:
            _drop_checkpoints(path.parent)


def _drop_checkpoints(work: Path) -> None:
    for folder in checkpoint_folders(work):
        shutil.rmtree(folder, ignore_errors=True)


def false_entries(root: Path) -> list[FalseEntry]:
    """Entries that DVC wrote after a stage had ended and that differ from the stage's note."""
    return [entry for entry in _judged(root) if entry.differences]


def wrong_entries(root: Path) -> str:
    """What `dvc.lock` is wrong about and what to do, for people; empty where all of it is true.

    Notes that agree are deleted, as by the next stage: after the last one there is none. So are
    the checkpoints of these stages.
    """
    found = []
    for judged in _judged(root):
        if judged.differences:
            found.append(str(judged))
        else:
            _drop_checkpoints(root / ".work" / judged.stage)  # Without a note, nobody would.
            forget_note(root, judged.stage)
    return f"{'; '.join(found)}. {REMEDY}" if found else ""


def require_true_entries(root: Path) -> None:
    """Check what DVC recorded about earlier stages, before anything builds on it.

    Raises:
        FalseEntryError: a record is false; the message says which one and what to do.
    """
    for judged in _judged(root):
        if judged.differences:
            raise FalseEntryError(f"{judged}. {REMEDY}")
        forget_note(root, judged.stage)


def _judged(root: Path) -> Iterator[FalseEntry]:
    """Each entry that belongs to a note, with its differences, which may be none."""
    records = sorted((root / ".work").glob(f"*/{RECORD}"))
    entries = read_entries(root) if records else {}
    for path in records:
        note, stage = read_json(path), path.parent.name
        entry = entries.get(stage)
        if note is None or entry is None or hashes(entry.get("outs")) != note["outs"]:
            continue
        judged = FalseEntry(stage, tuple(_differences(note, entry)), entry)
        # One that differs is DVC's of this run if it was not there before and DVC has kept the run:
        # a pull may bring one since, whose newer code makes the same bytes. One that agrees may
        # have been there: a clone that makes the recorded bytes records them as they were.
        changed = _digest(entry) != note["entry_before"]
        if not judged.differences or (changed and any(_kept_runs(root, entry))):
            yield judged


def _kept_runs(root: Path, entry: Mapping[str, Any]) -> Iterator[Path]:
    """The files of DVC's run cache with this entry; DVC writes one before it writes dvc.lock."""
    for path in cache_folder(root).parents[1].glob("runs/??/*/*"):
        with suppress(YAMLError, UnicodeDecodeError):  # DVC was killed as it wrote it.
            if same(YAML(typ="safe").load(path.read_text(encoding="utf-8")), entry):
                yield path


def _differences(note: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    used = flatten(note["params"])
    recorded = flatten(entry.get("params", {}).get(PARAMS, {}))
    for key in dict.fromkeys([*used, *recorded]):
        if not same(used.get(key), recorded.get(key)):
            yield f"{PARAMS}: {key} (used {used.get(key)}, recorded {recorded.get(key)})"
    deps = hashes(entry.get("deps"))
    for path in dict.fromkeys([*note["deps"], *deps]):
        if note["deps"].get(path, "") != deps.get(path, ""):
            old, new = (found.get(path, "")[:8] or "nothing" for found in (note["deps"], deps))
            yield f"{path} (used md5 {old}, recorded {new})"


def _digest(entry: Mapping[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _record(root: Path, stage: str) -> Path:
    return root / ".work" / stage / RECORD
