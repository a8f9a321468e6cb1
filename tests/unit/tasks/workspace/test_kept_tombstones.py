"""Damaged tombstones of the checkout (a merge conflict), mended afterwards."""

import os
import shutil
from pathlib import Path

import pytest

from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS
from tasks.forgetting.ledger import add
from tasks.workspace import variants
from tasks.workspace.worktrees import WorkspaceError
from tests.unit.tasks.workspace.test_runs import root as root
from tests.unit.tasks.workspace.test_withdrawn import ANN, withdrawn
from tests.unit.tasks.workspace.test_withdrawn import first as first
from tests.variant_workspaces import prepare_workspace


@pytest.fixture
def mended(root: Path, first: str) -> Path:
    workspace = prepare_workspace(root, "seed1")
    add(workspace, WITHDRAWN_JUDGMENTS, [ANN])
    assert withdrawn(prepare_workspace(root, "seed1")) == {ANN}, "a variant keeps its own"
    good = (root / WITHDRAWN_TEXTS).read_text()
    (root / WITHDRAWN_TEXTS).write_text("<<<<<<< HEAD\n")
    with pytest.raises(WorkspaceError):
        prepare_workspace(root, "seed1")
    (root / WITHDRAWN_TEXTS).write_text(good)
    return workspace


def test_a_refused_refresh_keeps_the_variants_own_tombstones(mended: Path):
    assert ANN in withdrawn_judgments(mended)


def test_the_variant_works_again_once_the_checkout_is_mended(root: Path, mended: Path):
    prepare_workspace(root, "seed1")


def withdrawn_judgments(workspace: Path) -> frozenset[object]:
    from preferences.withdrawals import load_withdrawals

    return load_withdrawals(workspace / WITHDRAWN_JUDGMENTS).tombstones


def test_a_refresh_that_git_refused_leaves_the_workspace_and_nothing_beside_it(root: Path):
    """What is withdrawn or run afterwards counts, and not what was there before."""
    workspace = prepare_workspace(root, "seed1")
    (workspace / "dvc.lock").write_text("stages: {}\n")
    lock = root / ".git/worktrees/seed1/index.lock"
    lock.touch()
    with pytest.raises(WorkspaceError):
        prepare_workspace(root, "seed1")
    lock.unlink()
    add(workspace, WITHDRAWN_JUDGMENTS, [ANN])
    (workspace / "dvc.lock").write_text("stages: {sft: {}}\n")

    prepare_workspace(root, "seed1")

    assert ANN in withdrawn_judgments(workspace)
    assert (workspace / "dvc.lock").read_text() == "stages: {sft: {}}\n"
    assert not list(workspace.parent.glob(".seed1*"))


@pytest.mark.parametrize("moment", ["checked out", "put back"])
def test_a_kill_in_the_middle_of_a_refresh_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    workspace = prepare_workspace(root, "seed1")
    add(workspace, WITHDRAWN_JUDGMENTS, [ANN])
    (workspace / "dvc.lock").write_text("stages: {sft: {}}\n")
    (workspace / "metrics").mkdir(exist_ok=True)
    (workspace / "metrics/r1.json").write_text("{}")
    where = {"checked out": "_results", "put back": "shutil.rmtree"}[moment]
    done = shutil.rmtree if moment == "put back" else variants._results

    def killed(path: Path, *arguments: object, **options: object) -> object:
        if path.name.startswith(".seed1.kept") and path.exists():
            if moment == "put back":  # A part of it is gone.
                next(file for file in path.rglob("*") if file.is_file()).unlink()
            os._exit(9)
        return done(path, *arguments, **options)

    if (child := os.fork()) == 0:
        try:
            monkeypatch.setattr(f"tasks.workspace.variants.{where}", killed)
            prepare_workspace(root, "seed1")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

    prepare_workspace(root, "seed1")

    assert ANN in withdrawn_judgments(workspace)
    assert (workspace / "dvc.lock").read_text() == "stages: {sft: {}}\n"
    assert (workspace / "metrics/r1.json").read_text() == "{}"
    assert not list(workspace.parent.glob(".seed1*"))
