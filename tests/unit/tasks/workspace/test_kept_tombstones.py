"""Damaged tombstones of the checkout (a merge conflict), mended afterwards."""

from pathlib import Path

import pytest

from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS
from tasks.forgetting.ledger import add
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
