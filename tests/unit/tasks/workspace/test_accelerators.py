"""Who gets which GPU; no GPU is needed to see it, since CUDA's own variable names them."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tasks.params.loading import ParamsError
from tasks.workspace import accelerators
from tasks.workspace.accelerators import VISIBLE, several_accelerators, sole_accelerator
from tasks.workspace.held import is_held


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(VISIBLE, "0,GPU-5c1d")


def test_each_takes_one_and_sees_no_other():
    with sole_accelerator("auto") as first:
        assert os.environ[VISIBLE] == first == "0"
        # A second process, as far as the kernel's locks are concerned: another open file.
        os.environ[VISIBLE] = "0,GPU-5c1d"
        with sole_accelerator("cuda") as second:
            assert os.environ[VISIBLE] == second == "GPU-5c1d"
    assert os.environ[VISIBLE] == "0,GPU-5c1d"


def test_who_finds_none_free_waits_for_the_first_that_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerators, "LOOK_SECONDS", 0.01)
    monkeypatch.setenv(VISIBLE, "7")
    got: list[str | None] = []

    def wait() -> None:
        with sole_accelerator("auto") as name:
            got.append(name)

    with sole_accelerator("auto"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        assert (got, waiting.is_alive()) == ([], True)
    waiting.join()
    assert got == ["7"]


def test_a_process_that_dies_leaves_its_gpu():
    code = (
        "import os, sys\nfrom tasks.workspace.accelerators import sole_accelerator\n"
        "with sole_accelerator('auto'):\n    os._exit(9)"
    )
    env = {**os.environ, VISIBLE: "0", "TMPDIR": tempfile.gettempdir()}
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, check=False)
    assert done.returncode == 9
    with sole_accelerator("auto") as name:
        assert name == "0"


@pytest.mark.parametrize(("device", "visible"), [("cpu", "0"), ("auto", ""), ("auto", "-1")])
def test_where_there_is_none_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str
):
    monkeypatch.setenv(VISIBLE, visible)
    with sole_accelerator(device) as first, sole_accelerator(device) as second:
        assert first is second is None
        assert os.environ[VISIBLE] == visible


@pytest.mark.parametrize("visible", ["0,", "0, ,1", "0,-1,1"])
def test_names_behind_one_that_is_no_device_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """CUDA does not see them; a stage that took such a name would compute on the CPU."""
    monkeypatch.setenv(VISIBLE, visible)
    with pytest.raises(ParamsError, match=r"run\.processes is 2, but CUDA shows 1 GPUs"):
        several_accelerators("auto", 2).__enter__()
    with sole_accelerator("auto") as name:
        assert name == "0"


def test_one_stage_of_several_processes_takes_gpus_at_a_time():
    """Two that had taken half of them each would wait for each other."""
    with several_accelerators("auto", 2), sole_accelerator("auto") as first:
        (lock,) = Path(tempfile.gettempdir()).glob("*/several.lock")
        assert is_held(lock)
        assert first == "0"
    assert not is_held(lock)


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(ParamsError, match=r"run\.processes is 3, but CUDA shows 2 GPUs"):
        several_accelerators("auto", 3).__enter__()
    with several_accelerators("cpu", 3):
        pass


@pytest.mark.parametrize("made_as", ["folder", "link"])
def test_locks_in_a_folder_of_somebody_else_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made_as: str
) -> None:
    """All users can make it beforehand, and hold its locks for ever."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    place = tmp_path / f"rlhf-rounds-{os.getuid()}"
    if made_as == "link":
        place.symlink_to(theirs)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        theirs.rename(tmp_path / "rlhf-rounds-4242")
    with pytest.raises(ParamsError, match=r"not a folder of this user; .* TMPDIR"):
        sole_accelerator("auto").__enter__()
    assert list(tmp_path.rglob("*.lock")) == []
