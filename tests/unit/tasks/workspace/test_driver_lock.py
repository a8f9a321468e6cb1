"""One driver of a workspace at a time, and no lock that outlives its holder."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.exceptions import TerminationSignal

from tasks.workspace import driver_lock
from tasks.workspace.driver_lock import (
    LOCK_FILE,
    Driver,
    WorkspaceBusyError,
    died_in,
    refuse_if_busy,
    sole_use,
)
from tasks.workspace.held import take

REPOSITORY = Path(__file__).parents[4]
REPRO = Driver(name="make repro")


def flow(run: str) -> Driver:
    return Driver(name=f"flow run {run}", flow_run=run)


def die_here(root: Path, driver: str) -> None:
    """Have a process take the workspace as `driver` (an expression) and be killed in it."""
    script = f"""
    import os, signal, sys
    sys.path.insert(0, {str(REPOSITORY)!r})
    from pathlib import Path
    from tasks.workspace.driver_lock import Driver, sole_use
    with sole_use(Path({str(root)!r}), {driver}):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("first", [flow("one"), REPRO])
@pytest.mark.parametrize("second", [flow("two"), REPRO])
def test_a_second_driver_is_refused_and_hears_who_works_here(tmp_path, first, second):
    who = rf"{first.name} works here since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(process \d+\)"
    with (
        sole_use(tmp_path, first),
        pytest.raises(WorkspaceBusyError, match=who),
        sole_use(tmp_path, second),
    ):
        pytest.fail("two drivers at once")


def test_a_refused_driver_does_not_take_the_name_off_the_lock(tmp_path):
    with sole_use(tmp_path, flow("one")):
        for _ in range(2):
            with pytest.raises(WorkspaceBusyError, match="flow run one"):
                refuse_if_busy(tmp_path)


def test_drivers_one_after_the_other_are_welcome_and_hear_of_no_death(tmp_path):
    for driver in (flow("one"), REPRO, flow("two")):
        refuse_if_busy(tmp_path)
        with sole_use(tmp_path, driver) as dead:
            assert dead == []


def test_a_flow_that_failed_is_not_taken_for_one_that_died(tmp_path):
    with pytest.raises(ZeroDivisionError), sole_use(tmp_path, flow("one")):
        raise ZeroDivisionError
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == []


@pytest.mark.parametrize("signalled", [TerminationSignal(15), KeyboardInterrupt()])
def test_a_flow_that_a_signal_ends_may_have_had_nobody_to_tell(tmp_path, signalled):
    with pytest.raises(type(signalled)), sole_use(tmp_path, flow("one")):
        raise signalled
    with pytest.raises(type(signalled)), sole_use(tmp_path, REPRO):
        raise signalled
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == ["one"]
    assert died_in(tmp_path) == []


def test_a_signal_that_comes_before_the_dead_are_told_of_forgets_none(tmp_path):
    die_here(tmp_path, 'Driver(name="a flow", flow_run="one")')
    with pytest.raises(KeyboardInterrupt), sole_use(tmp_path, flow("two")):
        raise KeyboardInterrupt
    with sole_use(tmp_path, flow("three")) as dead:
        assert dead == ["one", "two"]


def test_a_flow_that_is_tried_again_is_not_its_own_predecessor(tmp_path):
    with pytest.raises(KeyboardInterrupt), sole_use(tmp_path, flow("one")):
        raise KeyboardInterrupt
    with sole_use(tmp_path, flow("one")) as dead:
        assert dead == []
    die_here(tmp_path, 'Driver(name="a flow", flow_run="one")')
    with sole_use(tmp_path, flow("one")) as dead:
        assert dead == []
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == []


def test_a_killed_flow_frees_the_workspace_and_the_next_flow_hears_of_it_once(tmp_path):
    die_here(tmp_path, 'Driver(name="a flow", flow_run="one")')
    assert died_in(tmp_path) == died_in(tmp_path) == ["one"]
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == ["one"]
        assert died_in(tmp_path) == [], "it lives"
    with sole_use(tmp_path, flow("three")) as dead:
        assert dead == []


def test_a_flow_that_died_is_still_known_after_a_make_repro(tmp_path):
    die_here(tmp_path, 'Driver(name="a flow", flow_run="one")')
    with sole_use(tmp_path, REPRO):
        pass
    die_here(tmp_path, 'Driver(name="make repro")')
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == ["one"]


def test_who_only_looks_for_a_moment_keeps_no_driver_out(tmp_path):
    refuse_if_busy(tmp_path)
    look = take(tmp_path / LOCK_FILE, shared=True)
    assert look is not None
    threading.Timer(0.05, look.close).start()
    with sole_use(tmp_path, Driver(name="`make repro`")) as dead:
        assert look.closed
        assert dead == []


def test_a_note_that_was_cut_off_is_none(tmp_path):
    with sole_use(tmp_path, flow("one")):
        note = (tmp_path / LOCK_FILE).read_text()
    assert json.loads(note)["driver"]["flow_run"] == "one"
    (tmp_path / LOCK_FILE).write_text(note[:20])
    with sole_use(tmp_path, flow("two")) as dead:
        assert dead == []


@contextmanager
def runs_dvc(root: Path, *command: str) -> Iterator[int]:
    """A process that passes for `dvc COMMAND` in `root`; its id, once it runs.

    `Popen` returns before that: for a moment, Linux shows the new program without its words.
    """
    (root / "dvc").write_text("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    words = [sys.executable, "dvc", *command]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("command", [["repro"], ["--wait-for-lock", "repro", "-s", "sft"]])
def test_beside_a_bare_dvc_repro_nobody_drives(tmp_path, command):
    with (
        runs_dvc(tmp_path, *command) as process,
        pytest.raises(WorkspaceBusyError, match=rf"`dvc repro`.*process {process}\)"),
    ):
        refuse_if_busy(tmp_path)


def test_who_looks_while_a_dvc_dies_keeps_no_driver_out(tmp_path, monkeypatch):
    """It follows a driver that was killed; the next one waits for that, and so does who looks."""
    monkeypatch.setattr(driver_lock, "DYING_SECONDS", 60.0)
    with runs_dvc(tmp_path, "repro") as process:
        looking = threading.Thread(target=died_in, args=[tmp_path])
        looking.start()
        looking.join(0.2)  # So that it looks first.
        threading.Timer(0.6, os.kill, [process, signal.SIGKILL]).start()
        with sole_use(tmp_path, REPRO) as dead:
            assert dead == []
        looking.join()


def test_a_dvc_command_that_runs_no_stage_does_not_disturb(tmp_path):
    with runs_dvc(tmp_path, "exp", "show"):
        refuse_if_busy(tmp_path)
