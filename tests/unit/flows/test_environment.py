"""What every process that a flow starts finds in its environment."""

import shutil
import sys
from pathlib import Path

import pytest

from flows.environment import environment, stage_environment
from tasks.tracking.links import mlflow_ui


@pytest.fixture
def clean(monkeypatch):
    for name in (
        "PREFECT_HOME", "MLFLOW_TRACKING_URI", "RLHF_MLFLOW_UI", "no_proxy", "NO_PROXY",
        "PREFECT_CLIENT_MAX_RETRIES",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("clean")
def test_prefect_and_mlflow_stay_below_the_workspace(tmp_path):
    env = environment(tmp_path)
    assert env["PREFECT_HOME"] == f"{tmp_path}/.work/prefect"
    assert env["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/.work/mlflow/mlflow.db"


def test_what_the_user_has_chosen_holds(tmp_path, clean):
    clean.setenv("PREFECT_HOME", "/elsewhere")
    clean.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example:5000")
    env = environment(tmp_path)
    assert env["PREFECT_HOME"] == "/elsewhere"
    assert env["MLFLOW_TRACKING_URI"] == "http://mlflow.example:5000"


def test_a_prefect_server_may_be_away_for_three_minutes(tmp_path, clean):
    # Prefect waits 2, 4, 8 ... seconds between its tries, a fifth less at worst.
    tries = int(environment(tmp_path)["PREFECT_CLIENT_MAX_RETRIES"])
    assert 0.8 * sum(2**number for number in range(1, tries + 1)) > 180
    clean.setenv("PREFECT_CLIENT_MAX_RETRIES", "1")
    assert environment(tmp_path)["PREFECT_CLIENT_MAX_RETRIES"] == "1"


def test_telemetry_is_off_even_where_the_user_had_it_on(tmp_path, clean):
    clean.setenv("DO_NOT_TRACK", "0")
    clean.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    env = environment(tmp_path)
    assert env["DO_NOT_TRACK"] == "1"
    assert env["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert env["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert env["DVC_NO_ANALYTICS"] == "1"


def test_no_proxy_comes_between_us_and_our_servers(tmp_path, clean):
    clean.setenv("no_proxy", "intranet.example")
    env = environment(tmp_path)
    assert env["no_proxy"] == env["NO_PROXY"] == "intranet.example,127.0.0.1,localhost"


def test_a_stage_knows_its_execution_and_who_ships(tmp_path):
    env = stage_environment(tmp_path, "execution-7")
    assert env["RLHF_EXECUTION"] == "execution-7"
    assert env["RLHF_SHIPPER"] == "driver"


def test_a_stage_that_calls_python_gets_ours(tmp_path, clean):
    clean.setenv("PATH", "/usr/bin:/bin")
    found = shutil.which("python", path=stage_environment(tmp_path, "x")["PATH"])
    assert found is not None
    assert Path(found).parent == Path(sys.executable).parent


@pytest.mark.usefixtures("clean")
def test_the_local_store_has_no_page_until_make_ui_gives_it_one(tmp_path, monkeypatch):
    assert mlflow_ui(tmp_path) is None
    monkeypatch.setenv("RLHF_MLFLOW_UI", "http://127.0.0.1:5001/")
    assert mlflow_ui(tmp_path) == "http://127.0.0.1:5001"


def test_a_tracking_server_is_its_own_page_without_the_password(tmp_path, clean):
    clean.setenv("MLFLOW_TRACKING_URI", "https://anna:secret@mlflow.example/base")
    assert mlflow_ui(tmp_path) == "https://mlflow.example/base"
