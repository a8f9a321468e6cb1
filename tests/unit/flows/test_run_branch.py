"""What a run has done reaches its remotes: real git and DVC."""

import shutil
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Completed

from flows.run_branch import RunBranch
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import Driver
from tasks.workspace.runs import run_workspace
from tests.git_command import git
from tests.stage_world import environment

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that names its remotes by relative paths."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    checkout = tmp_path / "checkout"
    (checkout / ".dvc").mkdir(parents=True)
    shutil.copy(ROOT / "params.yaml", checkout)
    shutil.copy(ROOT / "dvc.yaml", checkout)
    (checkout / ".dvc/config").write_text(
        "[core]\n    remote = shared\n['remote \"shared\"']\n    url = ../../data\n"
    )
    (tmp_path / "data").mkdir()
    (checkout / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (checkout / ".gitignore").write_text("/.work/\n")
    for command in (
        "init --quiet --bare ../origin.git",
        "init --quiet --initial-branch=main",
        "remote add origin ../origin.git",
        "add --all",
        "commit --quiet --message one",
    ):
        git(checkout, *command.split())
    return checkout


def test_a_run_is_pushed_to_a_remote_that_is_named_by_a_relative_path(root: Path):
    with run_workspace(root, "mine", None, Choices(), Driver(name="test")) as (workspace, _):
        branch = RunBranch(workspace, "f1")
        branch.start()
        with disable_run_logger():
            state = branch.finish(Completed(message="All is well."))
    assert state.message == "All is well. Branch runs/mine, tag done/mine."
    listed = git(root, "ls-remote", "origin", "runs/mine", "done/mine").splitlines()
    assert [line.partition("\t")[2] for line in listed] == [
        "refs/heads/runs/mine", "refs/tags/done/mine"
    ]  # fmt: skip
