"""What the cards of a model show as measured: figures of this very model, and of no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.promoting.cards import model_card, summary
from tasks.promoting.registration import Waiting, _trained

OLD, NEW = "0" * 32 + ".dir", "1" * 32 + ".dir"
PATHS = {"sft": "models/sft", "ppo@r3": "models/rounds/r3/policy"}
MEASURED_BY = {"sft": ["baseline"], "ppo@r3": ["evaluate@r3", "test"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "params.yaml").write_text("final: r3\n")
    for place in ("baseline", "evaluate/r3", "test"):
        folder = tmp_path / "results" / place
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps({"gold": {"mean": 8.6}}))
    (tmp_path / "start.json").write_text(json.dumps({"execution": "e", "tags": {}}))
    return tmp_path


def trained(root: Path, stage: str, measured: str) -> Any:
    """Of a model with the hash NEW, where those who measure have last read this one."""
    path = PATHS[stage]
    stages: dict[str, Any] = {stage: {"outs": [{"path": path, "md5": NEW}]}}
    for reader in MEASURED_BY[stage]:
        stages[reader] = {"deps": [{"path": path, "md5": measured}]}
    (root / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    one = Waiting(
        stage=stage, path=path, digest=NEW, folder=root, logged="m", store="sqlite://", state="s"
    )
    return _trained(root, one)


@pytest.mark.parametrize("stage", list(PATHS))
def test_figures_of_the_policy_before_are_not_those_of_one_that_was_trained_anew(
    root: Path, stage: str
) -> None:
    """As after a run that ended between PPO and the evaluation."""
    before = trained(root, stage, OLD)
    assert (before.heldout, before.test) == (None, None)

    after = trained(root, stage, NEW)
    assert after.heldout == {"gold": {"mean": 8.6}}
    assert after.test == (after.heldout if stage == "ppo@r3" else None)


@pytest.mark.parametrize(("dirty", "words"), [("true", " with uncommitted changes"), ("false", "")])
def test_a_commit_is_not_said_to_be_all_that_made_a_model_where_files_were_changed(
    root: Path, dirty: str, words: str
) -> None:
    start = {"execution": "e", "tags": {"git.commit": "c0ffee"}}
    (root / "start.json").write_text(json.dumps(start))
    execution = root / ".work/executions/e"
    execution.mkdir(parents=True)
    (execution / "start.json").write_text(json.dumps({"tags": {"git.dirty": dirty}}))

    one = trained(root, "sft", NEW)
    assert f"at commit c0ffee{words}.\n" in model_card(one)
    assert f"commit c0ffee{words}.\n" in summary(one)
