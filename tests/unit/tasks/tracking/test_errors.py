"""What is said where MLflow does not respond."""

import pytest

from tasks.tracking.send import TrackingError, named_errors
from tasks.tracking.shipping import quiet_mlflow
from tasks.tracking.store import connect


def test_the_password_of_a_server_that_is_away_is_not_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    quiet_mlflow()
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1") as raised, named_errors():
        connect("http://ada:hunter2@127.0.0.1:9")
    assert "hunter2" not in str(raised.value)
