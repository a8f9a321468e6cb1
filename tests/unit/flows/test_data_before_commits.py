"""Data are pushed before the commit that names them."""

from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Completed

from flows import run_branch
from flows.run_branch import RunBranch
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver
from tasks.workspace.runs import run_workspace
from tests.git_command import git
from tests.unit.flows.test_run_branch import root as root


def test_commits_whose_data_could_not_be_pushed_are_not_pushed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gets a commit without its data."""
    monkeypatch.setattr(run_branch, "dvc", lambda *_, **__: 1)
    with run_workspace(root, "mine", None, Choices(), Driver(name="test")) as (workspace, _):
        branch = RunBranch(workspace, "f1")
        branch.start()
        with disable_run_logger():
            state = branch.finish(Completed(message="All is well."))

    assert state.name == "NotPushed"
    assert "`dvc push` failed; by hand" in (state.message or "")
    assert git(root, "ls-remote", "origin", "runs/mine", "done/mine") == ""
