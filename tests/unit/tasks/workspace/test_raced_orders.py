"""Orders: what a race, a full disk or an earlier attempt must not change."""

import errno
from pathlib import Path

import pytest

from tasks.workspace import orders
from tasks.workspace.orders import (
    Answer,
    Order,
    OrderError,
    adopt_entry,
    make_order,
    order_workspace,
    read_answer,
    send_answer,
    send_order,
)
from tasks.workspace.worktrees import WorkspaceError, find_commit, worktree_git
from tests.unit.tasks.workspace.test_orders import (
    HEAD,
    LOCK,
    ME,
    PARAMS,
    entry,
)
from tests.unit.tasks.workspace.test_orders import (
    clone as clone,
)
from tests.unit.tasks.workspace.test_orders import (
    driver as driver,
)


def arrived(driver: Path, clone: Path) -> Order:
    """An order of SFT, sent by the driver and known in the clone."""
    order = make_order(driver, "sft")
    send_order(driver, order, "origin")
    find_commit(clone, order.commit, "origin")
    return order


def test_an_order_that_comes_late_does_not_replace_the_answer(
    driver: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another driver of the same workspace has ordered, and got it, after we had looked."""
    order = arrived(driver, clone)
    with order_workspace(clone, order, ME) as workspace:
        commit = send_answer(workspace, order, Answer("ran", ""), "origin")

    with monkeypatch.context() as patch:
        patch.setattr(orders, "_tip", lambda *_: "")
        with pytest.raises(WorkspaceError):
            send_order(driver, order, "origin")

    assert read_answer(driver, order, "origin") == Answer("ran", "", commit)


def test_a_second_attempt_starts_from_the_order_whatever_the_first_has_left(
    driver: Path, clone: Path
):
    order = arrived(driver, clone)
    for _ in range(2):
        with order_workspace(clone, order, ME) as workspace:
            assert (workspace / "params.yaml").read_text() == PARAMS
            locked = HEAD + entry("prepare", "1", "data")
            assert (workspace / "dvc.lock").read_text() == locked
            (workspace / "params.yaml").write_text("rounds: {}\n")
            (workspace / "dvc.lock").write_text(LOCK)


def test_an_answer_to_another_order_is_refused(driver: Path, clone: Path):
    """Not only a commit that has no parent."""
    first = make_order(driver, "sft")
    (driver / "params.yaml").write_text("rounds: {}\nseed: 2\n")
    second = make_order(driver, "sft")
    send_order(driver, first, "origin")
    find_commit(clone, first.commit, "origin")
    with order_workspace(clone, first, ME) as workspace:
        commit = send_answer(workspace, first, Answer("ran", ""), "origin")
    worktree_git(clone, "push", "--quiet", "origin", f"{commit}:refs/heads/{second.branch}")

    with pytest.raises(OrderError, match="does not answer"):
        read_answer(driver, second, "origin")


def test_a_disk_that_is_full_leaves_the_lock_as_it_was(
    driver: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
):
    order = arrived(driver, clone)
    with order_workspace(clone, order, ME) as workspace:
        (workspace / "dvc.lock").write_text(HEAD + entry("sft", "9"))
        send_answer(workspace, order, Answer("ran", ""), "origin")
    answer = read_answer(driver, order, "origin")
    assert answer is not None
    write = Path.write_text

    def full(path: Path, text: str, **how: str) -> int:
        write(path, text[: len(text) // 2], **how)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        adopt_entry(driver, order, answer)

    assert (driver / "dvc.lock").read_text() == LOCK
