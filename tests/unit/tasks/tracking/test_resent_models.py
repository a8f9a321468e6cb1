"""What MLflow has of a model stays when a run is sent once more; a store has one name."""

from pathlib import Path

import pytest

from tasks.tracking.models import finished_model, log_model
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tests.tiny import llama, tokenizer

OUTPUT = {"rlhf.output": "models/sft"}


def test_a_store_below_the_folder_has_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    default = tracking_uri(tmp_path)
    assert default == f"sqlite:///{tmp_path}/.work/mlflow/mlflow.db"
    # As docs/how-to/promote.md writes it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///.work/mlflow/mlflow.db")
    assert tracking_uri(tmp_path) == default
    for elsewhere in ("sqlite:////srv/runs.db", "http://127.0.0.1:5000", "postgresql://h/n"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
        assert tracking_uri(tmp_path) == elsewhere


def test_a_finished_model_stays_and_one_that_was_left_half_sent_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # MLflow leaves in the environment what it was last told.
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    llama(vocabulary=len(tokenizer())).save_pretrained(tmp_path / "policy")
    tokenizer().save_pretrained(tmp_path / "policy")
    store = connect(tracking_uri(tmp_path))
    run = store.client.create_run(store.experiment).info.run_id
    assert finished_model(store, run, "models/sft") is None
    finished = log_model(store, run, "policy", tmp_path / "policy", OUTPUT)
    half = store.client.create_logged_model(
        store.experiment, name="policy", source_run_id=run, tags=OUTPUT
    ).model_id
    assert finished_model(store, run, "models/sft") == finished
    assert finished_model(store, run, "models/rounds/r1/policy") is None

    again = log_model(store, run, "policy", tmp_path / "policy", OUTPUT)

    found = store.client.search_logged_models([store.experiment])
    assert {model.model_id for model in found} == {finished, again}
    assert half not in (finished, again)


def test_a_model_that_a_kill_kept_off_its_run_s_outputs_is_put_there_once(tmp_path: Path) -> None:
    store = connect(f"sqlite:///{tmp_path}/mlflow.db")
    run = store.client.create_run(store.experiment).info.run_id
    model = store.client.create_logged_model(
        store.experiment, name="policy", source_run_id=run, tags=OUTPUT
    ).model_id
    assert finished_model(store, run, "models/sft") is None
    store.client.finalize_logged_model(model, "READY")
    for _ in range(2):
        assert finished_model(store, run, "models/sft") == model
    outputs = store.client.get_run(run).outputs
    assert outputs is not None
    assert [one.model_id for one in outputs.model_outputs] == [model]
