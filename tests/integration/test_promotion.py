"""What a decision about a policy leaves in MLflow's registry."""

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.tracking.promotion import (
    Candidate,
    Decision,
    PromotionError,
    candidate,
    decide,
    in_production,
)
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect

APPROVE = Decision(choice="approve", who="Lea", why="better on all counts")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose dvc.lock names the policies of two rounds; MLflow has both."""
    folder = tmp_path_factory.mktemp("promotion")
    lock = "".join(
        f"  ppo@{key}:\n    outs:\n    - path: models/rounds/{key}/policy\n      md5: {key}00.dir\n"
        for key in ("r1", "r2", "r3")
    )
    (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{lock}")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        store = connect(tracking_uri(folder))
        for key in ("r1", "r2"):
            run = store.client.create_run(store.experiment)
            model = store.client.create_logged_model(
                store.experiment,
                name="policy",
                source_run_id=run.info.run_id,
                tags={"dvc.md5": f"{key}00.dir"},
            )
            store.client.finalize_logged_model(model.model_id, "READY")
        yield folder


def client(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri(root))


def test_a_policy_that_mlflow_does_not_have_cannot_be_decided_on(root: Path) -> None:
    with pytest.raises(PromotionError, match=r"no model with the hash r300\.dir .*`make sync`"):
        candidate(root, "r3")
    with pytest.raises(PromotionError, match="ppo@r4 has not run"):
        candidate(root, "r4")


def test_approval_moves_the_alias_and_rejection_leaves_it_and_both_are_recorded(
    root: Path,
) -> None:
    assert in_production(root) is None
    first: Candidate = candidate(root, "r1")

    rejected = decide(root, first, Decision(choice="reject", who="Max", why="too long"))
    assert in_production(root) is None
    approved = decide(root, first, APPROVE)
    assert in_production(root).version == approved.version != rejected.version  # type: ignore[union-attr]
    again = decide(root, first, APPROVE)
    assert again.version == approved.version, "the same decision twice is one"

    second = candidate(root, "r2")
    decide(root, second, Decision(choice="reject", who="Lea", why="no better"))
    held = in_production(root)
    assert held is not None
    assert {key: held.tags[key] for key in ("rlhf.round", "decision", "decided_by", "reason")} == {
        "rlhf.round": "r1", "decision": "approved", "decided_by": "Lea",
        "reason": "better on all counts",
    }  # fmt: skip
    assert held.tags["decided_at"].endswith("+00:00")
    assert held.source == f"models:/{first.model.model_id}"

    decide(root, second, replace(APPROVE, why="on second thoughts"))
    assert in_production(root).tags["rlhf.round"] == "r2"  # type: ignore[union-attr]
    versions = client(root).search_model_versions("name = 'rlhf-policy'")
    said = [(one.tags["rlhf.round"], one.tags["decision"]) for one in versions]
    assert sorted(said) == [
        ("r1", "approved"), ("r1", "rejected"), ("r2", "approved"), ("r2", "rejected"),
    ]  # fmt: skip
