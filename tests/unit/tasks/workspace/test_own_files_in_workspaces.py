"""Own files and folders that params name: what of them comes along to a workspace."""

from pathlib import Path

import pytest

from tasks.workspace.worktrees import WorkspaceError, link_own_files
from tests.git_command import git
from tests.variant_workspaces import PARAMS, prepare_workspace, repository_with_variants


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository_with_variants(tmp_path)


def own_params(root: Path, text: str) -> None:
    (root / "params.yaml").write_text(f"{PARAMS}{text}")


def test_untracked_own_files_come_along_and_outputs_do_not(root: Path) -> None:
    (root / "mine/model").mkdir(parents=True)
    (root / "mine/model/config.json").write_text("{}")
    (root / "mine/prompts.jsonl").write_text("one\n")
    (root / "models/sft").mkdir(parents=True)
    own_params(
        root,
        "prepare: {files: {prompts: mine/prompts.jsonl}, sources: [{path: code.py}]}\n"
        "base: {model: mine/model}\n",
    )

    workspace = prepare_workspace(root, "no_kl")

    assert (workspace / "mine/prompts.jsonl").read_text() == "one\n"
    assert (workspace / "mine/model/config.json").read_text() == "{}"
    assert not (workspace / "code.py").is_symlink()  # tracked, so a version of its own
    assert not (workspace / "models").exists()
    # What changes later changes in the variant too, as the next call would bring it.
    (root / "mine/prompts.jsonl").write_text("two\n")
    assert (workspace / "mine/prompts.jsonl").read_text() == "two\n"
    assert (prepare_workspace(root, "no_kl") / "mine/prompts.jsonl").read_text() == "two\n"


def test_a_file_that_only_the_variant_names_comes_along_too(root: Path) -> None:
    (root / "mine.jsonl").write_text("one\n")
    (root / "params" / "own.yaml").write_text("prepare: {files: {prompts: mine.jsonl}}\n")

    assert (prepare_workspace(root, "own") / "mine.jsonl").read_text() == "one\n"


def test_a_file_that_became_tracked_or_went_away_is_no_longer_a_link(root: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (root / name).write_text("untracked\n")
    own_params(root, "prepare: {files: {prompts: a.jsonl, demonstrations: b.jsonl}}\n")
    workspace = prepare_workspace(root, "no_kl")
    assert (workspace / "a.jsonl").is_symlink()
    git(root, "add", "a.jsonl")
    git(root, "commit", "--quiet", "-m", "two")
    (root / "b.jsonl").unlink()

    prepare_workspace(root, "no_kl")

    assert not (workspace / "a.jsonl").is_symlink()
    assert (workspace / "a.jsonl").read_text() == "untracked\n"
    assert not (workspace / "b.jsonl").is_symlink()


def test_of_a_folder_that_git_knows_in_part_the_rest_comes_along(root: Path) -> None:
    """Such as a batch of labels that is not committed yet: the variant would train without it."""
    pairs = root / "mine/pairs"
    (pairs / "old").mkdir(parents=True)
    for name in ("one.jsonl", "old/zero.jsonl"):
        (pairs / name).write_text("tracked\n")
    git(root, "add", "mine")
    git(root, "commit", "--quiet", "-m", "two")
    (root / ".gitignore").write_text(".work\n/models\nthree.jsonl\n")
    own_params(root, "prepare: {sources: [{path: mine/pairs/}]}\n")
    for name in ("two.jsonl", "three.jsonl", "old/four.jsonl"):
        (pairs / name).write_text("untracked\n")
    git(root, "add", "mine/pairs/two.jsonl")

    workspace = prepare_workspace(root, "no_kl")

    found = workspace / "mine/pairs"
    assert texts_below(found) == texts_below(pairs)
    assert not (found / "one.jsonl").is_symlink()
    # One that went away, and one that git knows now.
    git(root, "rm", "--quiet", "--force", "mine/pairs/two.jsonl")
    git(root, "add", "--force", "mine")
    git(root, "commit", "--quiet", "-m", "three")
    (pairs / "old/five.jsonl").write_text("untracked\n")
    prepare_workspace(root, "no_kl")
    assert texts_below(found) == texts_below(pairs)
    assert not (found / "three.jsonl").is_symlink()


def test_a_run_of_an_older_commit_gets_no_committed_file_of_a_newer_one(root: Path) -> None:
    pairs = root / "mine/pairs"
    pairs.mkdir(parents=True)
    own_params(root, "prepare: {sources: [{path: mine/pairs}]}\n")
    for name in ("one.jsonl", "two.jsonl"):
        (pairs / name).write_text("tracked\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", name)
    for name in ("three.jsonl", "four.jsonl"):
        (pairs / name).write_text("in no commit\n")
    git(root, "add", str(pairs / "four.jsonl"))
    workspace = root / ".work/runs/older"
    git(root, "worktree", "add", "--quiet", "--detach", str(workspace), "HEAD~1")

    link_own_files(root, workspace)

    assert sorted(texts_below(workspace / "mine/pairs")) == [
        "four.jsonl",
        "one.jsonl",
        "three.jsonl",
    ]


def test_a_model_that_is_a_repository_of_its_own_comes_along(root: Path) -> None:
    """As `git clone` makes it; `git add` then takes its commit alone."""
    model = root / "mine/model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    git(model, "init", "--quiet")
    git(model, "add", "--all")
    git(model, "commit", "--quiet", "-m", "theirs")
    git(root, "-c", "advice.addEmbeddedRepo=false", "add", "mine")
    git(root, "commit", "--quiet", "-m", "two")
    own_params(root, "base: {model: mine/model}\n")

    for _ in range(2):
        workspace = prepare_workspace(root, "no_kl")
        assert texts_below(workspace / "mine/model") == {"config.json": "{}"}


def texts_below(folder: Path) -> dict[str, str]:
    """What a reader finds there, beside git's own folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = {path.relative_to(folder).as_posix(): path.read_text() for path in files}
    return {name: text for name, text in named.items() if not name.startswith(".git/")}


def test_a_relative_path_out_of_the_repository_is_refused_for_a_variant(root: Path) -> None:
    (root.parent / "prompts.jsonl").write_text("one\n")
    own_params(root, "prepare: {files: {prompts: ../prompts.jsonl}}\n")

    with pytest.raises(WorkspaceError, match=r"prepare\.files\.prompts.*\.\./prompts\.jsonl.*full"):
        prepare_workspace(root, "no_kl")
