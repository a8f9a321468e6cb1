"""One stage under DVC as the flow runs it, and how it ends with what has started it."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import processes, stages
from flows.stages import _finish_step, run_stage
from tests.integration.flow_world import (  # noqa: F401
    ROOT,
    ask,
    start_driver,
    workspace_fixture,
)
from tests.waiting import PATIENCE_SECONDS, eventually, is_alive, written


class Lines(logging.Handler):
    """A log to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("test_flow_stages")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def run(root: Path, stage: str, execution: str = "e1") -> Any:
    return run_stage(stage, root, execution=execution, logger=logging.getLogger("test_flow_stages"))


def test_a_stage_runs_then_is_unchanged_then_comes_from_the_run_cache(workspace: Path, log: Lines):
    assert run(workspace, "sft").how == "ran"
    assert run(workspace, "sft").how == "unchanged"
    (workspace / "input.txt").write_text("two")
    assert run(workspace, "sft", "e2").how == "ran"
    assert (workspace / "results/baseline/execution").read_text() == "e2"
    (workspace / "input.txt").write_text("one")
    assert run(workspace, "sft", "e3").how == "cached"
    assert (workspace / "results/baseline/execution").read_text() == "e1"


def test_the_log_has_the_lines_and_the_end_of_the_bar_and_no_advice(workspace: Path, log: Lines):
    run(workspace, "sft")
    assert "Running stage 'sft':" in log.said
    assert "sft step 3/3" in log.said
    assert not [line for line in log.said if "step 1/3" in line or "\r" in line or not line.strip()]
    assert not [line for line in log.said if "dvc push" in line]


def test_what_the_stage_says_of_its_end_is_believed_once_only(workspace: Path, log: Lines):
    ask(workspace, sft={"status": "blocked", "code": 4, "message": "40 % contradict"})
    assert run(workspace, "sft").how == "blocked"
    ask(workspace, sft={"killed": 9})
    ending = run(workspace, "sft")
    assert (ending.how, "SIGKILL" in ending.message) == ("killed", True)


DRIVER = """
run_stage("sft", Path.cwd(), execution="e1", logger=logging.getLogger())
"""
SHORT_GRACE = f"import flows.stages\nflows.stages.GRACE_SECONDS = 3.0\n{DRIVER}"


@pytest.mark.parametrize(
    ("signals", "kept"),
    [
        pytest.param([signal.SIGINT], True, marks=pytest.mark.long),
        ([signal.SIGTERM], False),
        pytest.param([signal.SIGINT, signal.SIGINT], False, marks=pytest.mark.long),
    ],
)
def test_after_a_ctrl_c_a_step_takes_as_long_as_it_needs(
    workspace: Path, signals: list[signal.Signals], kept: bool
):
    ask(workspace, sft={"sleeps": True, "step": 6 if kept else 120})
    with start_driver(workspace, SHORT_GRACE) as driver:
        tree = dvc_and_stage(workspace)
        for number in signals:
            driver.send_signal(number)
            # Its text, too: a second signal between the two would end the stage without it.
            written(workspace / "asked")
        driver.communicate()
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert (workspace / "asked").read_text() == signals[0].name
    assert (workspace / "checkpoint").exists() == kept


def test_a_stage_whose_run_is_cancelled_is_asked_to_end_and_keeps_its_checkpoint(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stages, "LOOK_SECONDS", 0.1)
    ask(workspace, sft={"sleeps": True, "step": 1})

    def is_cancelled() -> bool:
        return (workspace / "pids").exists()

    logger = logging.getLogger("test_flow_stages")
    ending = run_stage("sft", workspace, execution="e1", logger=logger, is_cancelled=is_cancelled)

    assert ending.how == "killed"
    assert (workspace / "asked").read_text() == "SIGTERM"
    assert (workspace / "checkpoint").exists()


@pytest.mark.long
def test_a_second_sigterm_for_one_cause_leaves_the_stage_its_time(workspace: Path):
    ask(workspace, sft={"sleeps": True, "step": 3})
    with start_driver(workspace, DRIVER) as driver:
        tree = dvc_and_stage(workspace)
        driver.send_signal(signal.SIGTERM)
        written(workspace / "asked")
        driver.send_signal(signal.SIGTERM)
        driver.communicate()
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert (workspace / "checkpoint").exists()


def dvc_and_stage(workspace: Path) -> list[int]:
    """Their process ids, once both are there."""
    pids = workspace / "pids"
    assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    return [int(pid) for pid in pids.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_dvc_and_the_stage_end_with_us_and_the_checkpoint_is_kept(workspace: Path, number: int):
    ask(workspace, sft={"sleeps": True})
    with start_driver(workspace, DRIVER) as driver:
        tree = dvc_and_stage(workspace)
        driver.send_signal(number)
        said = driver.communicate()[0]
    assert eventually(lambda: not any(map(is_alive, tree)))
    assert eventually(lambda: (workspace / "checkpoint").exists())
    if number != signal.SIGKILL:
        assert "checkpoint saved" in said, "the last words of the stage were not heard"


def test_a_second_ctrl_c_counts_while_the_first_one_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = "import signal, sys, time\nheard = []\n"
    code += "def hear(*_): sys.exit() if heard else heard.append(1) or open('heard', 'w')\n"
    code += "signal.signal(signal.SIGINT, hear)\n"
    code += "print('ready', flush=True)\nwhile True: time.sleep(0.1)"
    command = [sys.executable, "-c", code]
    process = processes.start(command, cwd=tmp_path, env=dict(os.environ), output=subprocess.PIPE)
    assert next(processes.lines(process)).startswith(b"ready")
    killpg, passed = os.killpg, []

    def interrupted(group: int, number: int) -> None:
        killpg(group, number)
        passed.append(number)
        if len(passed) == 1:
            eventually((tmp_path / "heard").exists)  # Two at once would be one.
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "killpg", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _finish_step(process, logging.getLogger("test_flow_stages"))
    assert passed[:2] == [signal.SIGINT] * 2
    assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.long
def test_make_flow_ends_with_its_server_and_all_stages_when_it_is_asked_to(workspace: Path):
    ask(workspace, sft={"sleeps": True})
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    with subprocess.Popen(
        [sys.executable, "-m", "flows.local"],
        cwd=workspace,
        env={**inherited, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        pids = workspace / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        tree = [int(pid) for pid in pids.read_text().split()]
        server = [int(pid) for pid in children(process.pid)]
        assert len(server) > len(set(server) & set(tree)), "no server of its own"
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[0]
    assert eventually(lambda: not any(map(is_alive, [*tree, *server])))
    assert "checkpoint saved" in said
    assert (workspace / ".work/prefect/prefect.db").exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
