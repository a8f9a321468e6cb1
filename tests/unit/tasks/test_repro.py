"""What `python -m tasks.repro` says of a variant before it makes anything."""

import shutil
from pathlib import Path

import pytest

from tasks.repro import main as repro
from tasks.workspace.worktrees import workspaces
from tests.git_command import git

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The params file of a variant `mine`, to be written, in a repository with valid params."""
    (tmp_path / "params").mkdir()
    for name in ("params.yaml", "dvc.yaml", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "params/mine.yaml"


def test_wrong_params_are_named_by_the_files_of_a_person_and_make_no_workspace(
    variant: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variant.write_text("ppo: {kl_coeff: 0.1}\n")
    assert repro(["--variant", "mine"]) == 2
    said = "params/mine.yaml over params.yaml: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?"
    assert capsys.readouterr().err == f"{said}\n"
    assert workspaces(Path()) == []


def test_inputs_that_are_missing_are_named_by_the_files_of_a_person(
    variant: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variant.write_text("prepare: {sources: [{path: nowhere.jsonl}]}\n")
    assert repro(["--variant", "mine"]) == 2
    assert capsys.readouterr().err.startswith(
        "params/mine.yaml over params.yaml: prepare.sources.0.path: nowhere.jsonl: no such"
    )
