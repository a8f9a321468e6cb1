"""Spools and executions of former runs are not read again and again while a run works."""

import os
import time
from pathlib import Path

import pytest

from tasks.tracking import shipping
from tasks.tracking.sent import load_sent, save_sent
from tasks.tracking.shipping import STILL_NS, ship_all, tracking_uri
from tasks.tracking.spool import EXECUTIONS_FOLDER, RunStart, open_spool, read_finish
from tasks.workspace.files import write_json


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs that have arrived some time ago, of a server that does not answer now."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for number in range(3):
        spool = open_spool(tmp_path, RunStart("sft", f"e{number}", {}, inputs={}, tags={}))
        spool.finish("FINISHED", {}, [])
        finish = read_finish(spool.folder)
        assert finish is not None
        arrived(spool.folder, finish["ended_ms"])
        folder = tmp_path / EXECUTIONS_FOLDER / f"e{number}"
        folder.mkdir(parents=True)
        write_json(folder / "end.json", {"ended_ms": 7})
        arrived(folder, 7)
    return tmp_path


def arrived(folder: Path, ended_ms: int) -> None:
    sent = load_sent(folder, tracking_uri(folder))
    sent.run, sent.described, sent.models_done, sent.ended_ms = "0a", True, True, ended_ms
    save_sent(folder, sent)
    long_ago(folder)


def long_ago(folder: Path) -> None:
    then = time.time_ns() - 10 * STILL_NS
    os.utime(folder, ns=(then, then))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose sent.json was read."""
    found: list[Path] = []

    def noted(folder: Path, uri: str) -> object:
        found.append(folder)
        return load_sent(folder, uri)

    monkeypatch.setattr(shipping, "load_sent", noted)
    return found


def states(root: Path, settled: dict[Path, int]) -> list[str]:
    return [result.state for result in ship_all(root, settled=settled)]


def test_what_has_arrived_is_read_once(root: Path, looks: list[Path]) -> None:
    settled: dict[Path, int] = {}
    assert states(root, settled) == ["complete"] * 6
    assert len(set(looks)) == 6
    looks.clear()

    assert states(root, settled) == ["complete"] * 6

    assert looks == []


def test_what_comes_anew_is_sent(root: Path, looks: list[Path]) -> None:
    settled: dict[Path, int] = {}
    states(root, settled)
    looks.clear()
    write_json(root / EXECUTIONS_FOLDER / "e1" / "end.json", {"ended_ms": 8})

    results = ship_all(root, settled=settled)

    assert set(looks) == {root / EXECUTIONS_FOLDER / "e1"}
    assert results[-1].state == "unreachable", "it is what was to be sent"


def test_a_killed_stages_spool_is_looked_at_each_time(root: Path) -> None:
    """Who goes on in it writes behind what is there, and its folder does not show that."""
    spool = open_spool(root, RunStart("ppo@r1", "e", {}, inputs={}, tags={}))
    spool._lock.close()  # As the kernel does for a process that has died.
    sent = load_sent(spool.folder, tracking_uri(spool.folder))
    sent.run, sent.described, sent.status = "0a", True, "KILLED"
    save_sent(spool.folder, sent)
    long_ago(spool.folder)
    settled: dict[Path, int] = {}

    assert set(states(root, settled)) == {"complete"}

    assert len(settled) == 6
    assert spool.folder not in settled
