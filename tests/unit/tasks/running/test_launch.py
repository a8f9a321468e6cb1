"""Which stages are several processes, and which process is one of them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from tasks.params.loading import ParamsError, RunParams
from tasks.running.launch import is_first, is_launched, launch, wants_several
from tasks.workspace.processes import children
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
    """torch keeps the state of a meeting as a pickle, and lets everybody in who connects."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("input()")
    keys: list[str] = []

    def look(command: Sequence[str], _run: RunParams) -> "subprocess.Popen[bytes]":
        launcher = [*command[: command.index("tasks.sft") - 1], "job.py"]
        process = subprocess.Popen(launcher, stdin=subprocess.PIPE)
        try:
            eventually(lambda: len(psutil.Process(process.pid).children()) == TWO.processes)
            for one in psutil.Process(process.pid).net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    port, patience = one.laddr.port, timedelta(seconds=60)
                    store = TCPStore("127.0.0.1", port, timeout=patience, wait_for_workers=False)
                    keys.extend(store.list_keys())
        finally:
            process.kill()
            process.communicate()
        raise InterruptedError

    monkeypatch.setattr("tasks.running.launch._start", look)
    with pytest.raises(InterruptedError):
        launch("sft", "sft", TWO)

    assert [key for key in keys if "rendezvous" in key] == []
