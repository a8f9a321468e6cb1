"""Orders and answers between two clones that only a bare repository connects: real git."""

import subprocess
from pathlib import Path

import pytest

from tasks.workspace.driver_lock import Driver, WorkspaceBusyError
from tasks.workspace.dvc_definition import DefinitionError
from tasks.workspace.dvc_lockfile import with_entry
from tasks.workspace.orders import (
    Answer,
    Order,
    OrderError,
    adopt_entry,
    adopt_notes,
    close_order,
    forget_order,
    make_order,
    order_workspace,
    read_answer,
    send_answer,
    send_order,
)
from tasks.workspace.stage_inputs import stage_inputs
from tasks.workspace.worktrees import WorkspaceError, find_commit, worktree_git

ME = Driver(name="a test")
WHEN = "2026-01-02T03:04:05+00:00"
PARAMS = "rounds: {r1: {policy: models/sft}}\n"
DEFINITION = """\
stages:
  sft:
    cmd: train
    deps: [code.py, data]
    outs: [models/sft]
  ppo:
    foreach: ${rounds}
    do:
      cmd: train
      deps: ["${item.policy}", results/sft/metrics.json, own/rows.jsonl, /shared/model]
      outs: ["models/${key}"]
"""


def entry(stage: str, md5: str, out: str = "models/sft") -> str:
    return f"  {stage}:\n    cmd: train\n    outs:\n    - path: {out}\n      md5: {md5}\n"


HEAD = "schema: '2.0'\nstages:\n"
LOCK = HEAD + entry("prepare", "1", "data") + entry("sft", "2")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a commit, and what a run has changed in it since."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    root = tmp_path / "driver"
    (root / "metrics").mkdir(parents=True)
    for name, text in {
        "code.py": "one", "params.yaml": "rounds: {}\n", "dvc.yaml": DEFINITION,
        "metrics/r1.json": "{}\n", ".gitignore": "/.work/\n",
    }.items():  # fmt: skip
        (root / name).write_text(text)
    worktree_git(root, "init", "--quiet", "--initial-branch=main")
    worktree_git(root, "add", "--all")
    worktree_git(root, "commit", "--quiet", "-m", "one", variables={"GIT_COMMITTER_DATE": WHEN})
    worktree_git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "origin.git")
    worktree_git(root, "remote", "add", "origin", f"file://{tmp_path}/origin.git")
    worktree_git(root, "push", "--quiet", "origin", "main")
    (root / "params.yaml").write_text(PARAMS)
    (root / "dvc.lock").write_text(LOCK)
    (root / "notes.txt").write_text("of nobody's concern")
    return root


@pytest.fixture
def clone(driver: Path) -> Path:
    folder = driver.parent / "worker"
    worktree_git(driver.parent, "clone", "--quiet", f"file://{driver.parent}/origin.git", "worker")
    return folder


def test_the_same_workspace_makes_the_same_order_and_touches_no_branch_and_no_index(driver: Path):
    status = worktree_git(driver, "status", "--porcelain")

    order = make_order(driver, "sft")

    assert make_order(driver, "sft") == order
    assert order.branch == f"stages/sft-{order.commit[:12]}"
    assert worktree_git(driver, "status", "--porcelain") == status
    (driver / "params.yaml").write_text("rounds: {}\nseed: 2\n")
    assert make_order(driver, "sft") != order


def test_an_order_has_the_definition_as_it_is_and_nothing_that_git_does_not_know(driver: Path):
    commit = make_order(driver, "sft").commit

    assert worktree_git(driver, "show", f"{commit}:params.yaml") == PARAMS.strip()
    # Not what the stage itself made last time: ordered again, it is the same order.
    locked = HEAD + entry("prepare", "1", "data")
    assert worktree_git(driver, "show", f"{commit}:dvc.lock") == locked.strip()
    (driver / "dvc.lock").write_text(LOCK.replace("md5: 2", "md5: 9"))
    assert make_order(driver, "sft").commit == commit
    assert "notes.txt" not in worktree_git(driver, "ls-tree", "--name-only", commit)


def test_code_that_is_in_no_commit_is_named_and_not_pushed(driver: Path):
    (driver / "metrics/r1.json").write_text("a run writes this")
    make_order(driver, "sft")
    (driver / "code.py").write_text("two")

    with pytest.raises(OrderError, match=r"in none: code\.py; commit them first"):
        make_order(driver, "sft")


def test_an_order_is_found_opened_and_answered_elsewhere(driver: Path, clone: Path):
    order = make_order(driver, "sft")
    when = worktree_git(driver, "show", "--no-patch", "--format=%cI", order.commit)
    assert when == WHEN, "the same order at another time would be another commit"
    send_order(driver, order, "origin")
    send_order(driver, order, "origin")  # A second time changes nothing.
    assert read_answer(driver, order, "origin") is None

    assert find_commit(clone, order.commit, "origin") == order.commit
    assert find_commit(clone, order.branch, "origin") == order.commit
    with order_workspace(clone, order, ME) as workspace:
        assert (workspace / "params.yaml").read_text() == PARAMS
        head = worktree_git(workspace, "rev-parse", "HEAD")
        assert head == worktree_git(driver, "rev-parse", "HEAD"), "MLflow would note another commit"
        (workspace / "dvc.lock").write_text(
            HEAD + entry("prepare", "1", "data") + entry("sft", "9")
        )
        (workspace / "metrics/final.json").write_text("[1]\n")
        (workspace / "metrics/r1.json").unlink()
        (workspace / ".work/sft/blocked").mkdir(parents=True)
        (workspace / ".work/sft/outcome.json").write_text('{"status": "done"}\n')
        (workspace / ".work/sft/blocked/report.md").write_text("# What it found\n")
        commit = send_answer(workspace, order, Answer("ran", "all well"), "origin")
        close_order(clone, workspace)
    assert not workspace.exists()

    answer = read_answer(driver, order, "origin")
    assert answer == Answer("ran", "all well", commit)
    (driver / "dvc.lock").write_text(LOCK + entry("later", "7"))
    adopt_notes(driver, order, answer)
    adopt_entry(driver, order, answer)
    assert (driver / ".work/sft/blocked/report.md").read_text() == "# What it found\n"
    assert (driver / "metrics/final.json").read_text() == "[1]\n"
    assert not (driver / "metrics/r1.json").exists(), "the stage has removed it"
    assert (driver / "dvc.lock").read_text() == (
        HEAD + entry("prepare", "1", "data") + entry("sft", "9") + entry("later", "7")
    )
    forget_order(driver, order, "origin")
    assert read_answer(driver, order, "origin") is None


def test_two_at_once_do_not_work_on_one_order(driver: Path, clone: Path):
    order = make_order(driver, "sft")
    send_order(driver, order, "origin")
    find_commit(clone, order.commit, "origin")

    with (
        order_workspace(clone, order, ME) as workspace,
        pytest.raises(WorkspaceBusyError, match="a test works here"),
        order_workspace(clone, order, ME),
    ):
        pytest.fail("both hold it")
    assert workspace.exists(), "an order that is not answered keeps its checkpoints"


def test_an_answer_to_something_else_is_refused(driver: Path):
    order = make_order(driver, "sft")
    worktree_git(driver, "push", "--quiet", "origin", f"HEAD:refs/heads/{order.branch}")

    with pytest.raises(OrderError, match="does not answer"):
        read_answer(driver, order, "origin")


def test_the_last_answer_counts(driver: Path, clone: Path):
    order = make_order(driver, "sft")
    send_order(driver, order, "origin")
    find_commit(clone, order.commit, "origin")
    with order_workspace(clone, order, ME) as workspace:
        send_answer(workspace, order, Answer("failed", "no space"), "origin")
        newer = send_answer(workspace, order, Answer("ran", ""), "origin")
    found = read_answer(driver, order, "origin")
    assert found is not None
    assert (found.how, found.commit) == ("ran", newer)


def test_an_unknown_revision_is_named(clone: Path):
    with pytest.raises(WorkspaceError, match="no branch, tag or commit 'nonsense'"):
        find_commit(clone, "nonsense", "origin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOCK, HEAD + entry("prepare", "1", "data") + entry("sft", "9")),
        (LOCK + entry("test", "3"), LOCK.replace("md5: 2", "md5: 9") + entry("test", "3")),
        (HEAD + entry("prepare", "1"), HEAD + entry("prepare", "1") + entry("sft", "9")),
        ("", HEAD + entry("sft", "9")),
    ],
)
def test_an_entry_takes_the_place_of_the_old_one_or_the_end(text: str, expected: str):
    source = HEAD + entry("base", "5") + entry("sft", "9") + entry("sft2", "6")
    assert with_entry(text, "sft", source) == expected


def test_a_lock_without_the_entry_is_no_source():
    with pytest.raises(KeyError):
        with_entry(LOCK, "ppo", LOCK)


def test_what_a_stage_reads_comes_from_stages_git_or_this_machine(driver: Path):
    lock = LOCK + entry("base", "4", "results/sft")
    (driver / "dvc.lock").write_text(lock)

    sft, ppo = stage_inputs(driver, "sft"), stage_inputs(driver, "ppo@r1")

    assert (sft.outputs, sft.makers, sft.private) == (("data",), ("prepare",), ())
    assert ppo.outputs == ("models/sft", "results/sft/metrics.json")
    assert ppo.makers == ("sft", "base")
    (driver / "dvc.yaml").write_text("stages: {test: {cmd: t, deps: [models, data/x], outs: [o]}}")
    assert stage_inputs(driver, "test").outputs == ("models/sft", "data/x")
    assert ppo.private == ("own/rows.jsonl", "/shared/model")


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("ppo@r9", "params.yaml has no round 'r9', and so"), ("train", "dvc.yaml has no stage train")],
)
def test_a_stage_that_there_is_not_is_named(driver: Path, stage: str, expected: str):
    with pytest.raises(DefinitionError, match=expected):
        stage_inputs(driver, stage)


def test_a_remote_that_is_named_by_a_relative_path_is_reached_from_workspaces(
    driver: Path, clone: Path
):
    worktree_git(driver, "remote", "set-url", "origin", "../origin.git")
    worktree_git(clone, "remote", "set-url", "origin", "../origin.git")
    run = driver / ".work/runs/mine"
    worktree_git(driver, "worktree", "add", "--quiet", "--detach", str(run))
    (run / "params.yaml").write_text(PARAMS)
    (run / "dvc.lock").write_text(LOCK)
    order = make_order(run, "sft")
    send_order(run, order, "origin")
    find_commit(clone, order.commit, "origin")
    with order_workspace(clone, order, ME) as workspace:
        commit = send_answer(workspace, order, Answer("ran", ""), "origin")
    assert read_answer(run, order, "origin") == Answer("ran", "", commit)
    forget_order(run, order, "origin")


def test_a_workspace_of_an_order_that_a_dead_git_has_left_half_is_made_again(driver: Path):
    (driver / ".work/stages").mkdir(parents=True)
    order = make_order(driver, "sft")
    with order_workspace(driver, order, ME) as workspace:
        (workspace / "code.py").unlink()
    half = driver / ".git/worktrees" / workspace.name
    (half / "locked").write_text("initializing")
    (half / "index.lock").touch()

    with order_workspace(driver, order, ME) as again:
        assert (again / "code.py").read_text() == "one"
    close_order(driver, again)


@pytest.mark.parametrize("ignored", ["", "*.jsonl\n"])
def test_of_a_folder_git_has_to_have_every_file_that_dvc_counts(driver: Path, ignored: str):
    mine = driver / "mine"
    (mine / "__pycache__").mkdir(parents=True)
    (mine / "one.txt").touch()
    (mine / "__pycache__/one.pyc").touch()
    (driver / ".dvcignore").write_text("__pycache__\n")
    (driver / "dvc.yaml").write_text("stages: {own: {cmd: x, deps: [mine], outs: [o]}}")
    worktree_git(driver, "add", "mine/one.txt")
    assert stage_inputs(driver, "own").private == ()

    (driver / ".gitignore").write_text(ignored)
    (mine / "réponses.jsonl").touch()
    assert stage_inputs(driver, "own").private == ("mine/réponses.jsonl",)


def test_the_branch_of_a_round_has_a_name_that_git_accepts():
    order = Order("ppo@r1", "3fa2c1d09b8e" + "0" * 28)
    done = subprocess.run(["git", "check-ref-format", f"refs/heads/{order.branch}"], check=False)
    assert done.returncode == 0
