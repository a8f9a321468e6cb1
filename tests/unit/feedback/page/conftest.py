"""The page over HTTP with ten pairs, and how a browser or a program signs in to it."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.server import ServerParams, create_app
from feedback.store import accounts
from feedback.store.assignments import ServeParams

KEY = "0123456789abcdef"


@pytest.fixture
def client(desk: Any, make_pairs: Any) -> Iterator[TestClient]:
    desk.publish(make_pairs(10))
    app = create_app(desk.database, ServerParams(), serve=ServeParams(gold_rate=0, repeat_rate=0))
    with TestClient(app, base_url="http://127.0.0.1:8765") as opened:
        yield opened


def token_of(desk: Any, name: str, role: str = "annotator") -> str:
    with desk.database.writing() as connection:
        return accounts.new_token(connection, name, role=role)


def sign_in(client: TestClient, desk: Any, name: str = "ana", role: str = "annotator") -> str:
    """Signs the client's browser in and returns its CSRF token."""
    answer = client.post("/api/login", json={"token": token_of(desk, name, role)})
    assert answer.status_code == 200
    page = client.get("/").text
    return page.split('name="csrf" content="')[1].split('"')[0]


def bearer(desk: Any, name: str = "ana", role: str = "annotator") -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(desk, name, role)}"}


def judgment(task: dict[str, Any], **changes: Any) -> dict[str, Any]:
    body = {"assignment_id": task["task"]["assignment_id"], "choice": "left", "key": KEY}
    return body | changes
