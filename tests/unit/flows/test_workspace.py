"""One flow run at a time, and no lock that outlives its holder."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flows.workspace import WorkspaceBusyError, refuse_if_busy, sole_use

REPOSITORY = Path(__file__).parents[3]


def test_a_second_run_is_refused_and_told_who_works_here(tmp_path):
    with (
        sole_use(tmp_path, "run-one"),
        pytest.raises(WorkspaceBusyError, match=r"run-one \(process \d+\)"),
        sole_use(tmp_path, "run-two"),
    ):
        pytest.fail("two runs at once")


def test_a_refused_run_does_not_take_the_name_off_the_lock(tmp_path):
    with sole_use(tmp_path, "run-one"):
        for _ in range(2):
            with pytest.raises(WorkspaceBusyError, match="run-one"):
                refuse_if_busy(tmp_path)


def test_runs_one_after_the_other_are_welcome_and_hear_of_no_death(tmp_path):
    for run in ("one", "two"):
        refuse_if_busy(tmp_path)
        with sole_use(tmp_path, run) as died:
            assert died is None


def test_a_run_that_failed_is_not_taken_for_one_that_died(tmp_path):
    with pytest.raises(ZeroDivisionError), sole_use(tmp_path, "one"):
        raise ZeroDivisionError
    with sole_use(tmp_path, "two") as died:
        assert died is None


def test_a_killed_run_frees_the_workspace_and_is_named(tmp_path):
    script = f"""
    import os, signal, sys
    sys.path.insert(0, {str(REPOSITORY)!r})
    from pathlib import Path
    from flows.workspace import sole_use
    with sole_use(Path({str(tmp_path)!r}), "run-one"):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    with sole_use(tmp_path, "run-two") as died:
        assert died == "run-one"
    with sole_use(tmp_path, "run-three") as died:
        assert died is None
