"""A stage's note of what it was made from, against what `dvc.lock` says."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.doctor import main
from tasks.running.provenance import (
    FalseEntryError,
    drop_recorded_checkpoints,
    entry_digest,
    false_entries,
    note_made_from,
    require_true_entries,
    wrong_entries,
)
from tasks.running.snapshot import ChangedMeanwhileError, take_snapshot
from tasks.workspace.dvc_definition import DefinitionError, read_definition
from tasks.workspace.files import DamagedNoteError

PIPELINE = """
stages:
  sft:
    cmd: exec python -m tasks.sft
    params: [run, sft.epochs]
    deps: [rlhf/sft.py, data/prepared]
    outs: [models/sft]
  ppo:
    foreach: ${rounds}
    do:
      cmd: exec python -m tasks.ppo --round ${key}
      params: [run, "rounds.${key}.policy"]
      deps: ["${item.policy}", "models/rounds/${key}/reward", "${own.file}"]
      outs: ["models/rounds/${key}/policy"]
"""
# md5 of "code", of the listing [{"md5": <md5 of "rows">, "relpath": "a"}], and of "weights":
# md5sum(1).
CODE, DATA, WEIGHTS = (
    "c13367945d5d4c91047b3b50234aa7ab",
    "78ff8185c41f44d15bb0e10ac24faa63.dir",
    "63f4f1e9b725370f459720575cd5f953",
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in {
        "dvc.yaml": PIPELINE,
        "params.yaml": "run: {seed: 0}\nsft: {epochs: 1, other: 2}\n",
        "rlhf/sft.py": "code",
        "data/prepared/a": "rows",
        "models/sft": "weights",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / ".work/sft").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
    return tmp_path


def write_lock(
    root: Path, *, epochs: int = 1, code: str = CODE, weights: str = WEIGHTS, ran: bool = True
) -> None:
    """As DVC would, after the stage has ended, or as a pull does, unless it `ran` here."""
    entry: dict[str, Any] = {
        "cmd": "exec python -m tasks.sft",
        "deps": [
            {"path": "data/prepared", "hash": "md5", "md5": DATA},
            {"path": "rlhf/sft.py", "hash": "md5", "md5": code},
        ],
        "params": {"params.yaml": {"run": {"seed": 0}, "sft.epochs": epochs}},
        "outs": [{"path": "models/sft", "hash": "md5", "md5": weights}],
    }
    if ran:
        keep_run(root, entry)
    YAML().dump({"schema": "2.0", "stages": {"sft": entry}}, root / "dvc.lock")


def keep_run(root: Path, entry: dict[str, Any]) -> None:
    """As DVC's run cache keeps a run, in a file named by its content."""
    folder = root / ".dvc/cache/runs/ab/abc"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(json.dumps(entry).encode()).hexdigest()
    YAML().dump(entry, folder / name)
    (folder / ".cut.tmp").write_text("cmd: exec\nouts: [")


def note(root: Path) -> None:
    """Run the stage, as far as its note is concerned."""
    snapshot = take_snapshot(root, "sft", ("run", "sft"))
    note_made_from(root, snapshot, entry_digest(root, "sft"))


def test_checkpoints_of_a_finished_stage_stay_until_dvc_has_recorded_its_outputs(root: Path):
    kept = root / ".work/sft/0123456789abcdef/step-00000007"
    kept.mkdir(parents=True)
    drop_recorded_checkpoints(root)  # It has not finished.
    note(root)
    for entry in (None, {"weights": "0" * 32}):  # DVC was killed; it has an earlier result.
        if entry:
            write_lock(root, **entry)
        drop_recorded_checkpoints(root)
        assert kept.is_dir()
    (root / "dvc.lock").write_text("<<<<<<< HEAD")
    drop_recorded_checkpoints(root)
    assert kept.is_dir()

    write_lock(root)
    drop_recorded_checkpoints(root)
    assert not kept.parent.exists()
    assert (root / ".work/sft/made_from.json").exists()


def test_the_driver_leaves_no_checkpoints_behind_with_the_note(root: Path):
    """It was killed when DVC had recorded the last stage, and finds all up to date."""
    kept = root / ".work/sft/0123456789abcdef/step-00000007"
    kept.mkdir(parents=True)
    note(root)
    write_lock(root)

    assert wrong_entries(root) == ""

    assert not kept.parent.exists()
    assert not (root / ".work/sft/made_from.json").exists()


def test_an_entry_that_agrees_is_true_and_the_note_has_done_its_work(root: Path):
    note(root)
    write_lock(root)

    assert false_entries(root) == []
    require_true_entries(root)

    assert list(root.glob(".work/*/made_from.json")) == []


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        ({"epochs": 2}, "params.yaml: sft.epochs (used 1, recorded 2)"),
        ({"code": "0123456789abcdef" * 2}, f"rlhf/sft.py (used md5 {CODE[:8]}, recorded 01234567)"),
    ],
)
def test_an_entry_that_differs_is_named_by_the_doctor_and_stops_the_next_stage(
    root: Path, lock: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
):
    note(root)
    write_lock(root, **lock)

    assert main([]) == 1
    line = f"sft: dvc.lock is wrong about its result: {words}"
    assert f"left   {line}: make doctor FIX=1" in capsys.readouterr().out
    with pytest.raises(FalseEntryError, match="make doctor FIX=1") as caught:
        require_true_entries(root)
    assert line in str(caught.value)


def test_the_fix_takes_the_entry_out_of_lock_and_run_cache_and_leaves_others(
    root: Path, capsys: pytest.CaptureFixture[str]
):
    note(root)
    write_lock(root, epochs=2)
    lock = YAML(typ="safe").load(root / "dvc.lock")
    true = {**lock["stages"]["sft"], "cmd": "another"}
    keep_run(root, true)
    lock["stages"]["base"] = true
    YAML().dump(lock, root / "dvc.lock")

    main(["--fix"])

    assert "fixed  sft: dvc.lock is wrong" in capsys.readouterr().out
    assert set(YAML(typ="safe").load(root / "dvc.lock")["stages"]) == {"base"}
    kept = [YAML(typ="safe").load(path) for path in (root / ".dvc/cache/runs/ab/abc").glob("[!.]*")]
    assert kept == [true]
    assert false_entries(root) == []


def test_only_an_entry_that_dvc_wrote_for_these_outputs_is_judged(root: Path):
    write_lock(root, epochs=2)
    note(root)
    assert false_entries(root) == []  # DVC has written nothing since the stage began.
    write_lock(root, epochs=2, weights="0" * 32)
    assert false_entries(root) == []  # Of other outputs: from DVC's run cache, or another commit.


def test_no_note_stays_that_a_later_pull_could_be_held_against(root: Path):
    """Code that changes no byte changes the entry; the note is of the run before it."""
    for lock_before in (False, True):  # A clone has the entry before it runs the stage.
        for judge in (require_true_entries, wrong_entries):  # The next stage, or the driver.
            (root / "dvc.lock").unlink(missing_ok=True)
            if lock_before:
                write_lock(root)
            note(root)
            write_lock(root)
            judge(root)

            write_lock(root, code="0123456789abcdef" * 2)

            assert false_entries(root) == [], (lock_before, judge)


def test_an_entry_that_a_pull_brought_is_not_held_against_a_note_that_stayed(root: Path):
    """After a bare `dvc repro` no driver has read the note of the last stage."""
    note(root)
    write_lock(root)
    write_lock(root, code="0123456789abcdef" * 2, ran=False)  # Newer code, the same outputs.

    assert false_entries(root) == []
    assert wrong_entries(root) == ""
    require_true_entries(root)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("params.yaml", "run: {seed: 0}\nsft: {epochs: 3}\n", "sft.epochs (1, now 3)"),
        ("params.yaml", "run: {seed: 0}\nsft: {}\n", "sft.epochs (1, now absent)"),
        ("params.yaml", "run: [", "params.yaml: not valid YAML"),
        ("rlhf/sft.py", "more", f"rlhf/sft.py (md5 {CODE[:8]}, now "),
        ("data/prepared/b", "new", f"data/prepared (md5 {DATA[:8]}, now "),
        ("dvc.yaml", PIPELINE.replace("tasks.sft", "tasks.other"), "dvc.yaml: cmd ('exec python"),
        ("dvc.yaml", PIPELINE.replace("rlhf/sft.py, ", ""), "deps (now without rlhf/sft.py)"),
    ],
)
def test_a_snapshot_names_what_has_changed(root: Path, name: str, content: str, words: str):
    snapshot = take_snapshot(root, "sft", ("run", "sft"))
    snapshot.require_unchanged(root)
    (root / name).write_text(content)

    with pytest.raises(ChangedMeanwhileError) as caught:
        snapshot.require_unchanged(root)
    assert words in str(caught.value)


def test_what_only_looks_changed_is_not(root: Path):
    snapshot = take_snapshot(root, "sft", ("run", "sft"))
    os.utime(root / "rlhf/sft.py", (1, 1))
    (root / "params.yaml").write_text(
        "# Another order.\nsft: {epochs: 1, other: 9}\nrun: {seed: 0}"
    )

    snapshot.require_unchanged(root)


def test_templates_are_filled_in_as_dvc_does(root: Path):
    rounds = {"r1": {"policy": "models/sft"}, "r2": {"policy": "models/rounds/r1/policy"}}
    values = {"rounds": rounds, "own": {"file": "data/mine.jsonl"}}

    found = read_definition(root, "ppo@r2", values)

    assert found is not None
    assert found.cmd == "exec python -m tasks.ppo --round r2"
    assert found.params == ("run", "rounds.r2.policy")
    assert found.deps == ("models/rounds/r1/policy", "models/rounds/r2/reward", "data/mine.jsonl")
    with pytest.raises(DefinitionError, match=r"\$\{own.file\} stands for nothing"):
        read_definition(root, "ppo@r1", {"rounds": rounds})
    assert read_definition(root, "none", {}) is None


def test_a_damaged_note_is_named_before_anything_builds_on_the_stage(root: Path) -> None:
    write_lock(root)
    path = root / ".work/sft/made_from.json"
    path.write_bytes(b"\0\0\0")
    for reads in (require_true_entries, false_entries, drop_recorded_checkpoints):
        with pytest.raises(DamagedNoteError, match=f"^{path}: damaged: its 3 bytes"):
            reads(root)
