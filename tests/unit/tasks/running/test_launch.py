"""Which stages are several processes, and which process is one of them."""

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.params.loading import ParamsError, RunParams
from tasks.running.launch import is_first, is_launched, launch, wants_several
from tasks.workspace.processes import children
from tests.background import hear_signals
from tests.waiting import eventually

TWO = RunParams(processes=2)


@pytest.mark.parametrize("section", ["sft", "sample", "reward", "ppo", "evaluate", "best_of_n"])
def test_stages_that_train_or_sample_can_be_several_processes(section: str) -> None:
    assert wants_several(TWO, section)
    assert not wants_several(RunParams(), section)


@pytest.mark.parametrize("section", ["prepare", "base", "label", "validate", "report"])
def test_the_other_stages_are_one(section: str) -> None:
    assert not wants_several(TWO, section)


def test_where_a_server_responds_one_process_asks_it() -> None:
    served = RunParams(processes=2, generation="server")

    wanted = {
        section
        for section in ("sft", "sample", "ppo", "evaluate")
        if wants_several(served, section)
    }
    assert wanted == {"sft", "ppo"}


def test_a_process_is_one_of_them_where_its_launcher_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_launched(TWO)
    monkeypatch.setenv("RANK", "1")
    assert not is_launched(TWO)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert is_launched(TWO)
    assert not is_first()
    with pytest.raises(ParamsError, match=r"run\.processes is 3, but WORLD_SIZE is 2"):
        is_launched(RunParams(processes=3))


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
@pytest.mark.parametrize("found", ["", "-1", "one"])
def test_a_launcher_that_gives_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, found)
    with pytest.raises(
        ParamsError, match=f"^{name}: expected a number from the launcher, found '{found}'$"
    ):
        is_launched(TWO)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("srunn --ntasks 2", "'srunn': No such file or directory"),
        ("bash 'launch.sh", "No closing quotation"),
        (str(Path(__file__).parent), "Permission denied"),
    ],
)
def test_a_launcher_that_cannot_be_started_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLHF_LAUNCH", command)
    with pytest.raises(ParamsError, match=f"^RLHF_LAUNCH: .*{reason}"):
        launch("sft", "sft", RunParams(processes=2, device="cpu"))


def test_children_are_those_of_one_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in children(os.getpid())
        assert children(child.pid) == []
    finally:
        child.communicate(b"\n")
    assert child.pid not in children(os.getpid())


def test_nobody_else_reaches_what_our_launcher_unpickles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch keeps the state of a meeting as a pickle: at a port it lets everybody in."""
    monkeypatch.chdir(tmp_path)
    modes: list[int] = []

    def look(command: Sequence[str], _run: RunParams) -> "subprocess.Popen[bytes]":
        asked = dict(itertools.pairwise(command))
        assert "--standalone" not in command
        assert (asked["--rdzv-backend"], asked["--rdzv-conf"]) == ("c10d", "store_type=file")
        modes.append(Path(asked["--rdzv-endpoint"]).parent.stat().st_mode & 0o777)
        raise InterruptedError

    monkeypatch.setattr("tasks.running.launch._start", look)
    with pytest.raises(InterruptedError):
        launch("sft", "sft", TWO)

    assert modes == [0o700]


def test_a_closed_terminal_ends_several_processes_in_order(tmp_path: Path) -> None:
    waits = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(600)'"
    several = (
        "from tasks.running.launch import RunParams, launch\n"
        "launch('sft', 'sft', RunParams(processes=2))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", several],
        env={**os.environ, "TMPDIR": str(tmp_path), "RLHF_LAUNCH": waits},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )

    def hears() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        return caught is not None and bool(int(caught[1], 16) & 1 << (signal.SIGHUP - 1))

    try:
        eventually(hears)
        process.send_signal(signal.SIGHUP)
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
    assert "sft: interrupted; run it again to resume" in said
    assert not list(tmp_path.glob("rlhf-*"))
