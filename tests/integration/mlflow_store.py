"""An MLflow store for the tests of a module, and an experiment for each of them."""

from pathlib import Path

import pytest


@pytest.fixture(name="database", scope="module")
def database_fixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite file: its creation takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(name="experiment")
def experiment_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> Path:
    """The test's folder, whose runs go to an experiment of its name."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    return tmp_path
