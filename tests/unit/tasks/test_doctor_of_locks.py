"""`make doctor` on DVC's locks: those of dead processes go, those of living ones stay."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.workspace.dvc_rwlock import clear_stale, dvc_processes
from tests import doctor_world
from tests.doctor_world import doctor

root = pytest.fixture(doctor_world.root)


def leave_lock(root: Path, content: str) -> Path:
    path = root / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return path


def test_an_empty_lock_file_is_nothing(root: Path):
    path = leave_lock(root, '{"read": {}, "write": {"x": {}}}')
    assert clear_stale(root) == []
    assert path.exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        # Process 1 exists, so DVC would wait for it; but it is no DVC command in this folder.
        (
            '{"write": {"models/sft": {"pid": 1, "cmd": "repro"}}}',
            "left behind by repro (process 1)",
        ),
        ('{"read": {"x": [{"pid": 1, "cmd": "a"}]}}', "left behind by a (process 1)"),
        ('{"write": {"mod', "damaged"),
        ("[]", "damaged"),
    ],
)
def test_what_dead_processes_left_is_named_and_removed(
    root: Path, capsys, content: str, problem: str
):
    path = leave_lock(root, content)

    code, said = doctor(capsys)
    assert code == 1
    assert f"{path}: {problem}" in said[0]
    assert f"rm {path}" in said[0]
    assert path.exists()
    (line,) = clear_stale(root)
    assert problem in line
    assert "rm " not in line, "it has been removed"
    assert not path.exists()


def test_the_locks_of_a_dvc_command_that_works_here_are_its_own(root: Path, tmp_path_factory):
    path = leave_lock(root, '{"write": {"models/sft": {"pid": 1, "cmd": "repro"}}}')
    program = tmp_path_factory.mktemp("bin") / "dvc"
    program.write_text("print('here', flush=True)\nimport sys; sys.stdin.read()")
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        assert dvc_processes(root) == [process.pid]
        assert clear_stale(root) == []
        assert path.exists()
    finally:
        process.communicate()
    assert len(clear_stale(root)) == 1
