"""A variant that one of git's hooks starts, or `git rebase --exec`: git names its own folders."""

from pathlib import Path

import pytest

from tasks.workspace.files import git_branch, git_commit
from tests.git_command import git
from tests.variant_workspaces import prepare_workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A worktree of the user's own, whose hooks get absolute paths."""
    main, root = tmp_path / "main", tmp_path / "own"
    (main / "params").mkdir(parents=True)
    (main / ".dvc").mkdir()
    (main / ".dvc/.gitignore").write_text("/config.local\n")
    (main / ".gitignore").write_text(".work\n")
    (main / "params.yaml").write_text("ppo: {kl_coef: 0.1}\n")
    (main / "params/no_kl.yaml").write_text("ppo: {kl_coef: 0.0}\n")
    (main / "dvc.yaml").write_text("stages: {}\n")
    git(main, "init", "--quiet")
    git(main, "add", "--all")
    git(main, "commit", "--quiet", "-m", "one")
    git(main, "worktree", "add", "--quiet", "-b", "side", str(root))
    return root


def test_the_checkout_stays_on_its_branch_with_its_edits(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_workspace(root, "no_kl")
    (root / "dvc.yaml").write_text("stages: {}  # edited\n")
    mine = git(root, "rev-parse", "--absolute-git-dir")

    with monkeypatch.context() as in_a_hook:
        in_a_hook.setenv("GIT_DIR", mine)
        in_a_hook.setenv("GIT_INDEX_FILE", f"{mine}/index")
        workspace = prepare_workspace(root, "no_kl")
        found = git_commit(workspace), git_branch(workspace)

    assert git(root, "branch", "--show-current") == "side"
    assert git(root, "status", "--porcelain") == "M dvc.yaml"
    assert (workspace / "dvc.yaml").read_text() == "stages: {}  # edited\n"
    assert found == (git(workspace, "rev-parse", "HEAD"), "")
