"""Notes below `.work` that something else has damaged, and what keeps a loss of power from it."""

import os
from pathlib import Path

import pytest

from tasks.repro import main as repro
from tasks.running.outcome import seconds_of_stages
from tasks.workspace.execution import EXECUTION_FILE, begin_execution
from tasks.workspace.files import DamagedNoteError, read_json, write_json
from tests import doctor_world
from tests.doctor_world import doctor

root = pytest.fixture(doctor_world.root)
variant = pytest.fixture(doctor_world.variant)


@pytest.mark.parametrize("content", [b"", b'{"id": "2026', b"[1]", b"\xff\xfe"])
def test_a_file_without_an_object_of_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(content)
    said = f"^{path}: damaged: its {len(content)} bytes are no object of JSON"
    with pytest.raises(DamagedNoteError, match=said):
        read_json(path)


def test_a_note_is_on_the_disk_before_it_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note.json"
    write_json(path, {"turn": 1})
    seen: list[tuple[str, str]] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        draft = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((draft.read_text(), path.read_text()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    write_json(path, {"turn": 2})
    assert seen == [('{\n "turn": 2\n}\n', '{\n "turn": 1\n}\n')]
    assert read_json(path) == {"turn": 2}


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("execution.json", "removed; the next run begins a new execution"),
        ("sft/outcome.json", "removed"),
        ("sft/made_from.json", "removed; dvc.lock is believed about that stage"),
    ],
)
def test_the_doctor_names_a_damaged_note_of_each_workspace_and_removes_it(
    root: Path, variant: Path, capsys: pytest.CaptureFixture[str], name: str, without: str
) -> None:
    paths = [folder / ".work" / name for folder in (root, variant)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = ["", f"{variant.relative_to(root)}: "]

    code, said = doctor(capsys)
    assert (code, said[-1]) == (1, "0 fixed, 2 left.")
    assert said[:-1] == [f"left   {one}.work/{name}: damaged: make doctor FIX=1" for one in before]

    code, said = doctor(capsys, "--fix")
    assert (code, said[-1]) == (0, "2 fixed, 0 left.")
    assert said[:-1] == [f"fixed  {one}.work/{name}: damaged: {without}" for one in before]
    assert not any(path.exists() for path in paths)
    assert doctor(capsys) == (0, ["All is well."])


def test_a_run_says_in_one_line_which_note_is_damaged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_execution(root)
    (root / EXECUTION_FILE).write_text("{")
    assert repro([]) == 2
    said = f"{root / EXECUTION_FILE}: damaged: its 1 bytes are no object of JSON (see make doctor)"
    assert capsys.readouterr().err.splitlines()[-1] == said


def test_a_damaged_outcome_of_another_stage_takes_no_time(tmp_path: Path) -> None:
    for stage, seconds in (("sft", 2.5), ("ppo@r1", 4.0)):
        (tmp_path / ".work" / stage).mkdir(parents=True)
        write_json(
            tmp_path / ".work" / stage / "outcome.json", {"execution": "run-7", "seconds": seconds}
        )
    (tmp_path / ".work/sft/outcome.json").write_text("")
    assert seconds_of_stages(tmp_path, "run-7") == 4.0
