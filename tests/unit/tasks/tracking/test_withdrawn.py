"""Versions of models that contain withdrawn data say so in MLflow's registry."""

from pathlib import Path

import pytest

from tasks.tracking.store import Store, connect
from tasks.tracking.withdrawn import TAG, mark


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Three logged models, the first two of them registered."""
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    store = connect(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    store.client.create_registered_model("rlhf-policy")
    for digest in ("aa.dir", "bb.dir", "cc.dir"):
        run = store.client.create_run(store.experiment)
        model = store.client.create_logged_model(
            store.experiment, name="m", source_run_id=run.info.run_id, tags={"dvc.md5": digest}
        )
        if digest != "cc.dir":
            store.client.create_model_version(
                "rlhf-policy", source=f"models:/{model.model_id}", tags={"dvc.md5": digest}
            )
    return store


def test_exactly_the_versions_and_logged_models_with_these_hashes_are_tagged(store: Store) -> None:
    assert mark(store, {"bb.dir", "cc.dir", "dd.dir"}, "see the log") == ["rlhf-policy version 2"]

    versions = store.client.search_model_versions("name = 'rlhf-policy'")
    assert {v.tags["dvc.md5"]: v.tags.get(TAG) for v in versions} == {
        "aa.dir": None,
        "bb.dir": "see the log",
    }
    logged = store.client.search_logged_models([store.experiment])
    assert {m.tags["dvc.md5"]: m.tags.get(TAG) for m in logged} == {
        "aa.dir": None,
        "bb.dir": "see the log",
        "cc.dir": "see the log",
    }
