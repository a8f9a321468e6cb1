"""Workspaces of variants, in a real git repository."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from ruamel.yaml import YAML

from tasks.params.overlays import lay_over
from tasks.workspace.driver_lock import Driver, WorkspaceBusyError
from tasks.workspace.variants import variant_workspace
from tasks.workspace.worktrees import WorkspaceError, workspaces
from tests.git_command import git
from tests.variant_workspaces import PARAMS, prepare_workspace, repository_with_variants


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository_with_variants(tmp_path)


def params_of(workspace: Path) -> dict[str, dict[str, object]]:
    loaded: dict[str, dict[str, object]] = YAML(typ="safe").load(
        (workspace / "params.yaml").read_text()
    )
    return loaded


def test_a_mapping_is_merged_key_by_key_and_anything_else_replaced() -> None:
    base = {"a": {"x": 1, "y": {"z": 2}}, "b": [1, 2], "c": 3}
    overlay = {"a": {"y": {"w": 4}}, "b": [5], "d": {"e": 6}}
    merged = {"a": {"x": 1, "y": {"z": 2, "w": 4}}, "b": [5], "c": 3, "d": {"e": 6}}
    assert lay_over(base, overlay) == merged
    assert base["a"] == {"x": 1, "y": {"z": 2}}


def test_the_workspace_has_the_overlaid_params_and_the_main_line_its_own(root: Path) -> None:
    workspace = prepare_workspace(root, "no_kl")
    expected = params_of(root)
    expected["ppo"]["kl_coef"] = 0.0
    assert params_of(workspace) == expected
    assert params_of(workspace)["ppo"]["learning_rate"] == 1e-5
    assert list(params_of(workspace)["rounds"]) == ["r2", "r10"]
    assert (root / "params.yaml").read_text() == PARAMS
    assert workspaces(root) == [workspace]
    assert git(root, "status", "--porcelain") == ""


def test_tracked_uncommitted_changes_come_along_and_leave_no_stash(root: Path) -> None:
    (root / "code.py").write_text("two\n")
    workspace = prepare_workspace(root, "no_kl")
    assert (workspace / "code.py").read_text() == "two\n"
    assert git(root, "stash", "list") == ""
    (root / "code.py").write_text("three\n")
    assert (prepare_workspace(root, "no_kl") / "code.py").read_text() == "three\n"


def test_a_file_that_git_has_only_noted_comes_along(root: Path) -> None:
    """Git makes no stash of it: "error: Entry 'new.py' not uptodate. Cannot merge."."""
    (root / "code.py").write_text("two\n")
    (root / "new.py").write_text("new\n")
    git(root, "add", "--intent-to-add", "new.py")
    before = git(root, "status", "--porcelain")
    workspace = prepare_workspace(root, "no_kl")
    assert [(workspace / name).read_text() for name in ("code.py", "new.py")] == ["two\n", "new\n"]
    assert git(root, "status", "--porcelain") == before


def test_a_file_that_was_only_touched_changes_nothing(root: Path) -> None:
    os.utime(root / "code.py", (1, 1))
    assert (prepare_workspace(root, "no_kl") / "code.py").read_text() == "one\n"


def test_a_refresh_keeps_checkpoints_outputs_and_the_variants_own_lock(root: Path) -> None:
    workspace = prepare_workspace(root, "no_kl")
    for path in (".work/ppo@r1/checkpoint", "models/sft/weights"):
        (workspace / path).parent.mkdir(parents=True)
        (workspace / path).write_text("kept")
    (workspace / "dvc.lock").write_text("variant\n")
    (root / "dvc.lock").write_text("main, changed\n")
    (root / "params.yaml").write_text(PARAMS.replace("seed: 0", "seed: 7"))
    prepare_workspace(root, "no_kl")
    assert (workspace / ".work/ppo@r1/checkpoint").read_text() == "kept"
    assert (workspace / "models/sft/weights").read_text() == "kept"
    assert (workspace / "dvc.lock").read_text() == "variant\n"
    assert params_of(workspace)["run"]["seed"] == 7


def test_a_refresh_keeps_the_metrics_of_the_variant_and_takes_none_of_the_main_line(
    root: Path,
) -> None:
    (root / "metrics").mkdir()
    (root / "metrics/final.json").write_text("main")
    subprocess.run(["git", "-C", str(root), "add", "metrics"], check=True)
    workspace = prepare_workspace(root, "no_kl")
    (workspace / "metrics/final.json").write_text("variant")
    (root / "metrics/r9.json").write_text("a round that only the main line has")
    subprocess.run(["git", "-C", str(root), "add", "metrics"], check=True)
    prepare_workspace(root, "no_kl")
    found = {path.name: path.read_text() for path in (workspace / "metrics").iterdir()}
    assert found == {"final.json": "variant"}


def test_a_workspace_that_was_deleted_by_hand_is_made_again(root: Path) -> None:
    workspace = prepare_workspace(root, "no_kl")
    subprocess.run(["rm", "-r", str(workspace)], check=True)
    assert (prepare_workspace(root, "no_kl") / "code.py").exists()


def test_the_cache_is_that_of_the_main_checkout_wherever_it_is(root: Path, tmp_path: Path) -> None:
    workspace = prepare_workspace(root, "no_kl")
    config = (workspace / ".dvc" / "config.local").read_text()
    assert f"dir = {root / '.dvc' / 'cache'}" in config
    (root / ".dvc" / "config.local").write_text(
        "[cache]\n    dir = ../../elsewhere\n['remote \"store\"']\n    password = secret%s\n"
    )
    config = (prepare_workspace(root, "no_kl") / ".dvc" / "config.local").read_text()
    assert f"dir = {tmp_path / 'elsewhere'}" in config
    assert "password = secret%s" in config


def test_git_hooks_do_not_run_in_a_workspace(root: Path) -> None:
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hook-ran\n")
    hook.chmod(0o755)
    assert not (prepare_workspace(root, "no_kl") / "hook-ran").exists()


def test_an_unknown_variant_names_those_there_are(root: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"no variant 'nokl'.*there are: no_kl, seed1"):
        prepare_workspace(root, "nokl")


@pytest.mark.parametrize("name", ["../params", "", "/etc/passwd"])
def test_a_variant_is_a_name_and_not_a_path(root: Path, name: str) -> None:
    with pytest.raises(WorkspaceError, match="no variant"):
        prepare_workspace(root, name)


def test_a_variant_that_is_no_mapping_is_refused_before_anything_is_made(root: Path) -> None:
    (root / "params" / "odd.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(WorkspaceError, match=r"params/odd\.yaml: expected a mapping.*list"):
        prepare_workspace(root, "odd")
    assert workspaces(root) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"run: {seed: 1\n", "not valid YAML: "),
        (b"run: {seed: 1, seed: 2}\n", "not valid YAML: .*duplicate key"),
        (b"run: {seed: 1}  # \xff\n", "not UTF-8 .*at byte 18"),
    ],
)
def test_a_variant_that_cannot_be_read_is_refused_before_anything_is_made(
    root: Path, content: bytes, problem: str
) -> None:
    (root / "params" / "odd.yaml").write_bytes(content)
    with pytest.raises(WorkspaceError, match=rf"^params/odd\.yaml: {problem}"):
        prepare_workspace(root, "odd")
    assert workspaces(root) == []


def test_variants_that_start_at_once_wait_for_each_other(root: Path) -> None:
    (root / "code.py").write_text("two, not committed\n")
    names = ["no_kl", "seed1"] * 4
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda name: prepare_workspace(root, name), names))
    assert {path.name for path in made} == {"no_kl", "seed1"}
    assert {(path / "code.py").read_text() for path in made} == {"two, not committed\n"}


@pytest.mark.parametrize("folder", ["half", "without .git", "gone"])
def test_a_worktree_that_a_dead_git_has_left_half_is_made_again(root: Path, folder: str) -> None:
    workspace = half_made(root)
    if folder != "half":
        (workspace / ".git").unlink()
    if folder == "gone":
        shutil.rmtree(workspace)

    assert prepare_workspace(root, "no_kl") == workspace

    assert (workspace / "code.py").read_text() == "one\n"
    assert "locked" not in git(root, "worktree", "list", "--porcelain")


def test_one_in_which_something_has_run_is_not_thrown_away_for_it(root: Path) -> None:
    """`git checkout --force` had completed it."""
    workspace = half_made(root)
    (root / ".git/worktrees/no_kl/index.lock").unlink()
    (workspace / ".work").mkdir(exist_ok=True)
    (workspace / ".work/checkpoint").write_text("dear")

    assert prepare_workspace(root, "no_kl") == workspace

    assert (workspace / ".work/checkpoint").read_text() == "dear"
    assert (workspace / "code.py").read_text() == "one\n"
    assert "locked" not in git(root, "worktree", "list", "--porcelain")


def half_made(root: Path) -> Path:
    """As `git worktree add` leaves it that is killed while it writes the files."""
    workspace = prepare_workspace(root, "no_kl")
    (workspace / "code.py").unlink()
    half = root / ".git/worktrees/no_kl"
    (half / "locked").write_text("initializing")
    (half / "index.lock").touch()
    return workspace


def test_who_prepares_a_workspace_holds_it_and_a_second_changes_nothing(root: Path) -> None:
    with variant_workspace(root, "no_kl", Driver(name="the first")) as workspace:
        (root / "code.py").write_text("two\n")

        with pytest.raises(WorkspaceBusyError, match="the first works here"):
            prepare_workspace(root, "no_kl")

        assert (workspace / "code.py").read_text() == "one\n"
    assert (prepare_workspace(root, "no_kl") / "code.py").read_text() == "two\n"


def test_nobody_else_gets_a_workspace_between_its_checkout_and_its_first_use(root: Path) -> None:
    """The second of two would write the files anew while the first reads them."""
    entered = Barrier(2, timeout=60)

    def drive(name: str) -> str:
        try:
            with variant_workspace(root, "no_kl", Driver(name=name)):
                entered.wait()
        except WorkspaceBusyError:
            entered.wait()
            return "busy"
        return "held"

    with ThreadPoolExecutor() as pool:
        assert sorted(pool.map(drive, ["one", "two"])) == ["busy", "held"]
