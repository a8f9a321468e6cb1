"""Workspaces of a checkout that was moved or copied with them, in a real git repository."""

import shutil
from pathlib import Path

import pytest

from tasks.workspace.runs import commit_run
from tasks.workspace.worktrees import find_moved, link_own_files, prune_worktrees
from tests.git_command import git
from tests.variant_workspaces import prepare_workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    (repository / "params").mkdir(parents=True)
    (repository / ".dvc").mkdir()
    (repository / ".dvc/.gitignore").write_text("/config.local\n")
    (repository / "params.yaml").write_text("base: {model: own}\n")
    (repository / "params/no_kl.yaml").write_text("ppo: {kl_coef: 0.0}\n")
    (repository / "dvc.yaml").write_text("stages: {}\n")
    (repository / ".gitignore").write_text(".work\n")
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "one")
    return repository


def with_run(root: Path) -> Path:
    workspace = root / ".work/runs/mine"
    git(root, "worktree", "add", "--quiet", "-b", "runs/mine", str(workspace))
    return workspace


def test_a_variant_goes_on_after_a_move_with_what_it_has(root: Path) -> None:
    workspace = prepare_workspace(root, "no_kl")
    (workspace / ".work/checkpoint").write_text("dear")
    moved = root.rename(root.with_name("moved"))

    again = prepare_workspace(moved, "no_kl")

    assert again == moved / ".work/variants/no_kl"
    assert (again / ".work/checkpoint").read_text() == "dear"
    assert git(again, "rev-parse", "--show-toplevel") == str(again)


def test_a_run_stays_on_its_branch_after_a_move_whoever_prunes_first(root: Path) -> None:
    with_run(root)
    moved = root.rename(root.with_name("moved"))

    prune_worktrees(moved)

    assert git(moved / ".work/runs/mine", "branch", "--show-current") == "runs/mine"
    assert str(root) not in git(moved, "worktree", "list", "--porcelain").splitlines()


def test_what_a_copied_run_commits_is_on_the_copys_branch_alone(root: Path) -> None:
    original = with_run(root)
    copied = Path(shutil.copytree(root, root.with_name("copied"), symlinks=True))
    before = git(root, "rev-parse", "runs/mine")

    find_moved(copied)
    workspace = copied / ".work/runs/mine"
    (workspace / "params.yaml").write_text("edited\n")
    commit = commit_run(workspace, "Params", files={}, stages=None, trailers={})

    assert git(copied, "rev-parse", "runs/mine") == commit
    assert git(root, "rev-parse", "runs/mine") == before
    assert git(original, "status", "--porcelain") == ""
    find_moved(root)
    assert git(original, "rev-parse", "--show-toplevel") == str(original)


def test_links_to_own_files_lead_into_the_moved_checkout(root: Path) -> None:
    (root / "own").mkdir()
    workspace = prepare_workspace(root, "no_kl")
    assert (workspace / "own").readlink() == root / "own"
    moved = root.rename(root.with_name("moved"))

    link_own_files(moved, moved / ".work/variants/no_kl")

    assert (moved / ".work/variants/no_kl/own").readlink() == moved / "own"


def test_a_worktree_of_the_users_own_is_known_when_its_disk_is_back(root: Path) -> None:
    own = root.with_name("on_another_disk")
    git(root, "worktree", "add", "--quiet", "--detach", str(own))
    (own / "mine").write_text("staged")
    git(own, "add", "mine")
    away = own.rename(root.with_name("away"))
    lost = prepare_workspace(root, "no_kl")
    shutil.rmtree(lost)

    prune_worktrees(root)

    assert str(lost) not in git(root, "worktree", "list", "--porcelain")
    away.rename(own)
    assert git(own, "diff", "--cached", "--name-only") == "mine"
