"""A user id without an account, as in a container that was started with `--user 12345`."""

import os
import pwd
import subprocess
import sys

import pytest

from flows.environment import environment
from tasks.workspace.account import account
from tasks.workspace.dvc_graph import read_graph
from tasks.workspace.dvc_process import dvc_environment

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.fixture
def _without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in NAMES:
        monkeypatch.setenv(name, "before")  # So that what is set meanwhile goes with the test.
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_without_account")
def test_dvc_and_flows_find_a_name_where_there_is_none(tmp_path):
    for found in (dvc_environment(os.environ), environment(tmp_path)):
        asked = "import getpass; print(getpass.getuser())"
        done = subprocess.run(
            [sys.executable, "-c", asked], env=found, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(os.getuid())


@pytest.mark.usefixtures("_without_account")
def test_the_pipeline_is_read_in_this_process_too(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n  no_scm = true\n")
    (tmp_path / "dvc.yaml").write_text("stages: {one: {cmd: echo > x, outs: [x]}}\n")
    assert read_graph(tmp_path).stale == {"one"}


@pytest.mark.usefixtures("_without_account")
def test_the_name_that_the_environment_has_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("USER", "kim")
    assert account() == {}
    assert dvc_environment(os.environ)["USER"] == "kim"
