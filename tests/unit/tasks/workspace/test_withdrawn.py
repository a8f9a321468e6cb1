"""Tombstones of a checkout reach every workspace whose stages it starts, whatever it was made of.

Real git; the stages' own reading of the files is in tests/integration/test_forgetting_in_runs.py.
"""

import subprocess
from pathlib import Path

import pytest

from preferences.withdrawals import (
    WITHDRAWN_JUDGMENTS,
    WITHDRAWN_TEXTS,
    Tombstone,
    load_withdrawals,
    tombstone,
)
from tasks.forgetting.ledger import add
from tasks.workspace.driver_lock import Driver
from tasks.workspace.orders import (
    Answer,
    adopt_entry,
    make_order,
    order_workspace,
    read_answer,
    send_answer,
    send_order,
)
from tasks.workspace.runs import commit_run
from tasks.workspace.worktrees import WorkspaceError, find_commit, workspaces, worktree_git
from tests.git_command import git
from tests.unit.tasks.workspace.test_runs import commit, of, prepare_run
from tests.unit.tasks.workspace.test_runs import root as root
from tests.variant_workspaces import prepare_workspace

SALT = "0123456789abcdef" * 2
OTHER_SALT = "fedcba9876543210" * 2
ANN = tombstone("annotator", "ann", SALT)
BOB = tombstone("annotator", "bob", SALT)
CLEO = tombstone("annotator", "cleo", OTHER_SALT)
PROMPT = tombstone("prompt", "50278d8977a13d46", SALT)


def withdrawn(folder: Path) -> set[Tombstone]:
    return {
        one
        for name in (WITHDRAWN_TEXTS, WITHDRAWN_JUDGMENTS)
        for one in load_withdrawals(folder / name).tombstones
    }


def clone_of(root: Path, commit: str, folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", root, folder], check=True)
    git(folder, "checkout", "--quiet", commit.replace("runs/", "origin/runs/"))
    return folder


@pytest.fixture
def first(root: Path) -> str:
    """The commit of before anything was withdrawn; its files of tombstones are blank."""
    (root / "data/withdrawn").mkdir(parents=True)
    for name in (WITHDRAWN_TEXTS, WITHDRAWN_JUDGMENTS):
        (root / name).write_text("\n")
    commit(root, "two")
    return git(root, "rev-parse", "HEAD")


def start_and_commit(root: Path, name: str, revision: str | None) -> Path:
    workspace = prepare_run(root, name, revision, of())
    commit_run(workspace, "Params", files={}, stages=None, trailers={})
    return workspace


def test_a_new_run_has_what_was_withdrawn_and_not_committed_and_so_has_its_clone(
    root: Path, first: str, tmp_path: Path
):
    add(root, WITHDRAWN_JUDGMENTS, [ANN])
    add(root, WITHDRAWN_TEXTS, [PROMPT])

    workspace = start_and_commit(root, "mine", None)

    # The same bytes: what the checkout has made from them is restored and not made again.
    for name in (WITHDRAWN_TEXTS, WITHDRAWN_JUDGMENTS):
        assert (workspace / name).read_bytes() == (root / name).read_bytes()
    assert withdrawn(clone_of(root, "runs/mine", tmp_path / "clone")) == {ANN, PROMPT}
    assert git(root, "rev-parse", "main") == first


def test_a_continued_run_gets_what_was_withdrawn_since_and_keeps_its_own(
    root: Path, first: str, tmp_path: Path
):
    workspace = start_and_commit(root, "mine", None)
    add(workspace, WITHDRAWN_JUDGMENTS, [CLEO])
    add(root, WITHDRAWN_JUDGMENTS, [ANN, BOB])
    commit(root, "withdrawn")

    start_and_commit(root, "mine", None)

    assert withdrawn(workspace) == {ANN, BOB, CLEO}
    assert withdrawn(clone_of(root, "runs/mine", tmp_path / "clone")) == {ANN, BOB, CLEO}
    assert withdrawn(root) == {ANN, BOB}, "the checkout is not touched"
    before = (workspace / WITHDRAWN_JUDGMENTS).read_bytes()
    head = git(workspace, "rev-parse", "HEAD")
    start_and_commit(root, "mine", None)
    assert (workspace / WITHDRAWN_JUDGMENTS).read_bytes() == before
    assert git(workspace, "rev-parse", "HEAD") == head, "nothing new is no commit"


def test_a_run_of_an_older_revision_has_what_was_withdrawn_since(
    root: Path, first: str, tmp_path: Path
):
    add(root, WITHDRAWN_TEXTS, [PROMPT])
    commit(root, "withdrawn")

    workspace = start_and_commit(root, "old", first)

    assert withdrawn(workspace) == {PROMPT}
    assert withdrawn(clone_of(root, "runs/old", tmp_path / "clone")) == {PROMPT}


def test_a_run_whose_folder_went_has_what_was_withdrawn_since(root: Path, first: str):
    workspace = start_and_commit(root, "mine", None)
    git(root, "worktree", "remove", "--force", str(workspace))
    add(root, WITHDRAWN_TEXTS, [PROMPT])

    assert withdrawn(start_and_commit(root, "mine", None)) == {PROMPT}


def before_withdrawals(root: Path) -> str:
    """A commit whose stages read no tombstones."""
    (root / "dvc.yaml").write_text(
        "\n".join(
            line for line in (root / "dvc.yaml").read_text().splitlines() if "withdrawn" not in line
        )
    )
    commit(root, "before")
    return git(root, "rev-parse", "HEAD")


def test_a_revision_that_cannot_leave_it_out_is_refused_and_leaves_nothing(root: Path):
    then = (root / "dvc.yaml").read_text()
    old = before_withdrawals(root)
    prepare_run(root, "earlier", old, of())  # Nothing was withdrawn yet.
    (root / "dvc.yaml").write_text(then)
    commit(root, "since")
    add(root, WITHDRAWN_TEXTS, [PROMPT])

    for name in ("mine", "earlier"):
        with pytest.raises(WorkspaceError, match=r"revision: .*no stage.*withdrawn/texts\.jsonl"):
            prepare_run(root, name, old, of())

    assert [path.name for path in workspaces(root)] == ["earlier"]
    assert git(root, "branch", "--list", "runs/mine") == ""


def test_tombstones_that_cannot_be_trusted_start_no_run(root: Path, first: str):
    (root / WITHDRAWN_TEXTS).write_text("<<<<<<< HEAD\n")
    with pytest.raises(WorkspaceError, match=r"texts\.jsonl:1: expected a tombstone"):
        prepare_run(root, "mine", first, of())
    assert workspaces(root) == []


def test_a_variant_has_them_too_tracked_or_not_and_keeps_its_own(root: Path, first: str):
    add(root, WITHDRAWN_JUDGMENTS, [ANN])
    assert withdrawn(prepare_workspace(root, "seed1")) == {ANN}

    git(root, "rm", "--quiet", "--cached", WITHDRAWN_TEXTS)
    commit_message = ["commit", "--quiet", "-m", "untracked"]
    git(root, *commit_message)
    add(root, WITHDRAWN_TEXTS, [PROMPT])
    assert withdrawn(prepare_workspace(root, "seed1")) == {ANN, PROMPT}

    git(root, "checkout", "--quiet", "--force", first)
    assert withdrawn(prepare_workspace(root, "seed1")) == {ANN, PROMPT}


@pytest.fixture
def clone(root: Path, first: str, tmp_path: Path) -> Path:
    """Another machine's, connected by a bare repository."""
    origin = tmp_path / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", origin], check=True)
    git(root, "remote", "add", "origin", str(origin))
    git(root, "push", "--quiet", "origin", "main")
    subprocess.run(
        ["git", "clone", "--quiet", "-b", "main", origin, tmp_path / "clone"], check=True
    )
    return tmp_path / "clone"


def test_a_stage_elsewhere_gets_those_of_the_run_that_ordered_it(root: Path, clone: Path):
    add(root, WITHDRAWN_TEXTS, [PROMPT])
    workspace = start_and_commit(root, "mine", None)
    order = make_order(workspace, "sft")
    send_order(workspace, order, "origin")
    find_commit(clone, order.commit, "origin")

    with order_workspace(clone, order, Driver(name="test")) as there:
        assert withdrawn(there) == {PROMPT}


def test_an_order_of_a_checkout_has_what_is_not_committed_there(root: Path, first: str):
    add(root, WITHDRAWN_TEXTS, [PROMPT])
    commit = make_order(root, "sft").commit
    assert f"{git(root, 'show', f'{commit}:{WITHDRAWN_TEXTS}')}\n" == PROMPT.line()


def test_a_stage_elsewhere_knows_what_was_withdrawn_there_and_its_answer_says_so(
    root: Path, clone: Path, first: str
):
    add(root, WITHDRAWN_TEXTS, [PROMPT])
    workspace = start_and_commit(root, "mine", first)
    add(clone, WITHDRAWN_TEXTS, [PROMPT, BOB])
    order = make_order(workspace, "sft")
    send_order(workspace, order, "origin")
    find_commit(clone, order.commit, "origin")

    with order_workspace(clone, order, Driver(name="test")) as there:
        assert withdrawn(there) == {PROMPT, BOB}
        send_answer(there, order, Answer("ran", ""), "origin")
        made_from = (there / WITHDRAWN_TEXTS).read_bytes()
        (there / "dvc.lock").write_text("schema: '2.0'\nstages:\n  sft:\n    cmd: two\n")
        send_answer(there, order, Answer("ran", ""), "origin")
    answer = read_answer(workspace, order, "origin")
    assert answer is not None
    adopt_entry(workspace, order, answer)

    # The entry of dvc.lock that comes with it has the hash of these bytes.
    assert (workspace / WITHDRAWN_TEXTS).read_bytes() == made_from
    commit_run(workspace, "Round r1", files={}, stages=None, trailers={})
    assert worktree_git(workspace, "status", "--porcelain", WITHDRAWN_TEXTS) == ""


def test_a_revision_that_cannot_leave_it_out_is_refused_elsewhere_too(root: Path, clone: Path):
    before_withdrawals(root)
    git(root, "push", "--quiet", "origin", "main")
    order = make_order(root, "sft")
    send_order(root, order, "origin")
    find_commit(clone, order.commit, "origin")
    add(clone, WITHDRAWN_JUDGMENTS, [ANN])

    with (
        pytest.raises(WorkspaceError, match=r"no stage.*withdrawn/judgments\.jsonl"),
        order_workspace(clone, order, Driver(name="test")),
    ):
        pytest.fail("it was opened")
