"""Where DVC keeps its objects: as DVC itself says, whichever of its settings names the folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.worktrees import share_cache


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/settings"))
    monkeypatch.setenv("DVC_SYSTEM_CONFIG_DIR", str(tmp_path / "machine"))
    monkeypatch.delenv("DVC_GLOBAL_CONFIG_DIR", raising=False)
    root = tmp_path / "checkout"
    root.mkdir()
    dvc(root, "init", "--no-scm", "-q")
    return root


def dvc(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("level", "folder", "where"),
    [
        pytest.param("--system", "/srv/all", "/srv/all", marks=pytest.mark.long),
        ("--global", "~/mine", "home/mine"),
        pytest.param("--local", "../near", "near", marks=pytest.mark.long),
    ],
)
def test_the_folder_is_the_one_that_dvc_uses(
    root: Path, tmp_path: Path, level: str, folder: str, where: str
) -> None:
    dvc(root, "config", level, "cache.dir", folder)

    found = cache_folder(root)

    assert found.resolve() == tmp_path / where / "files/md5"
    said = Path(dvc(root, "cache", "dir").strip()).expanduser()
    assert found.resolve() == (root / said / "files/md5").resolve()


@pytest.mark.parametrize("name", [pytest.param("mine", marks=pytest.mark.long), "mine #1, ada's"])
def test_a_workspace_shares_the_cache_of_the_user_s_own_settings(
    root: Path, tmp_path: Path, name: str
) -> None:
    """In DVC's settings # begins a comment, and a comma makes a list."""
    dvc(root, "config", "--global", "cache.dir", str(tmp_path / name))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    dvc(workspace, "init", "--no-scm", "-q")

    share_cache(root, workspace)

    assert dvc(workspace, "cache", "dir").strip() == str(tmp_path / name)
    assert cache_folder(workspace) == tmp_path / name / "files/md5"
