"""A store that cannot be written: nothing is confirmed, and the log is short."""

import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.security import POLICY
from tests.unit.feedback.page.conftest import bearer, judgment


def test_an_answer_that_cannot_be_stored_is_one_line_in_the_log_and_can_be_sent_again(
    client: TestClient, desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    headers = bearer(desk)
    body = judgment(client.post("/api/task", headers=headers).json())
    # Stands for a full disk: SQLite reports both as an operation that failed.
    desk.sql("ALTER TABLE labels RENAME TO gone")
    with caplog.at_level(logging.WARNING, logger="feedback"):
        answer = client.post("/api/judgments", headers=headers, json=body)
    assert answer.status_code == 503
    assert answer.json() == {"detail": "the store fails; try again"}
    assert answer.headers["Content-Security-Policy"] == POLICY
    (line,) = [one.getMessage() for one in caplog.records if one.name.startswith("feedback")]
    assert "the store fails: " in line
    assert "no such table: labels" in line
    assert "\n" not in line
    desk.sql("ALTER TABLE gone RENAME TO labels")
    again = client.post("/api/judgments", headers=headers, json=body)
    assert (again.status_code, again.json()["fresh"]) == (200, True)
