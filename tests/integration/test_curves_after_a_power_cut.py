"""After a loss of power a curve is what was forced to the disk; MLflow must not have more of it."""

import os
from pathlib import Path

import pytest

from tasks.tracking.shipping import ship
from tasks.tracking.spool import open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    history,
    log_steps,
    root_fixture,
    run_of,
    start,
)


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Path of each file that was forced to the disk -> its size then."""
    sizes: dict[str, int] = {}
    force = os.fsync

    def noted(descriptor: int) -> None:
        force(descriptor)
        sizes[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fsync", noted)
    return sizes


def test_a_resumed_stages_run_goes_on_after_a_power_cut(
    root: Path, durable: dict[str, int]
) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 10)
    for _ in range(10):
        spool.log_system({"memory": 2.0})
    assert ship(spool.folder).state == "open"
    spool._lock.close()  # As the kernel does.
    for curve in ("metrics.jsonl", "system.jsonl"):
        path = spool.folder / curve
        os.truncate(path, durable.get(str(path), 0))

    resumed = open_spool(root, start())
    log_steps(resumed, 0, 14)  # From the checkpoint's history, and on.
    for _ in range(20):
        resumed.log_system({"memory": 1 / 3})  # A longer line.
    resumed.finish("FINISHED", {}, [])

    result = ship(resumed.folder)
    assert result.state == "complete", result.detail
    run = run_of(root, "ppo@r1")
    assert [step for step, _ in history(root, run, "objective/kl")] == list(range(14))
    assert [step for step, _ in history(root, run, "memory")] == list(range(30))


def test_what_a_stage_has_logged_is_on_the_disk_before_its_end(
    root: Path, durable: dict[str, int]
) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 10)
    spool.log_system({"memory": 1.0})
    spool.finish("FINISHED", {}, [])

    for curve in ("metrics.jsonl", "system.jsonl"):
        path = spool.folder / curve
        assert durable[str(path)] == path.stat().st_size > 0


def test_what_is_logged_while_a_curve_is_forced_to_the_disk_is_sent_the_next_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 10)
    force, late = os.fsync, [10]

    def noted(descriptor: int) -> None:
        force(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "metrics.jsonl" and late:
            log_steps(spool, late.pop(), 12)

    monkeypatch.setattr(os, "fsync", noted)
    for length in (10, 12):
        assert ship(spool.folder).state == "open"
        sent = history(root, run_of(root, "ppo@r1"), "objective/kl")
        assert [step for step, _ in sent] == list(range(length))
