"""DVC's and git's remotes of a workspace: real DVC, another process that holds its lock."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from flows import remotes
from tests.stage_world import environment

LOGGER = logging.getLogger(__name__)
HOLD = """
import time
from dvc.repo import Repo, lock_repo
with Repo(".") as repo, lock_repo(repo):
    print("held", flush=True)
    time.sleep(8)  # DVC gives up after three.
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one file in DVC, and a folder as its remote."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "workspace"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc/config").write_text(
        "[core]\n    no_scm = true\n    remote = shared\n"
        "['remote \"shared\"']\n    url = ../../remote\n"
    )
    (root / "rows").write_text("1")
    (tmp_path / "remote").mkdir()
    subprocess.run([sys.executable, "-m", "dvc", "add", "--quiet", "rows"], cwd=root, check=True)
    return root


@pytest.mark.parametrize("command", [("push",), ("pull", "--quiet")])
def test_a_remote_that_is_not_mounted_is_not_made_anew(
    workspace: Path, caplog: pytest.LogCaptureFixture, command: tuple[str, ...]
):
    folder = workspace.parent / "remote"
    folder.rmdir()

    assert remotes.dvc(workspace, "e", *command, logger=LOGGER) != 0

    said = f"DVC's remote 'shared', {folder}: no such folder; mount it, or make it if it is new"
    assert caplog.messages == [said]
    assert not folder.exists()


@pytest.mark.long
def test_a_push_waits_for_another_process_that_uses_dvc_here(workspace: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=workspace, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert remotes.dvc(workspace, "e", "push", "--quiet", "rows.dvc", logger=LOGGER) == 0
    assert [path for path in (workspace.parent / "remote").rglob("*") if path.is_file()]


def test_the_log_has_no_password_of_a_remote(workspace: Path, caplog: pytest.LogCaptureFixture):
    address = "http://ada:hunter2@127.0.0.1:9/data"
    with caplog.at_level(logging.INFO):
        assert remotes.dvc(workspace, "e", "push", "--remote", address, logger=LOGGER) != 0
    assert "http://***@127.0.0.1:9/data" in caplog.text
    assert "hunter2" not in caplog.text
