"""Requests of other hosts and sites, or too large ones, are refused; no page runs their scripts."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from feedback.page.proxies import NO_PROXIES
from feedback.page.security import MAX_BODY_BYTES, Guard, TooLargeError
from tests.unit.feedback.page.conftest import sign_in, token_of


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "[::2]", "127.0.0.1.evil.example"]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/login", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:1", "[::1]:8765"])
def test_our_own_hosts_are_served(client: TestClient, host: str) -> None:
    assert client.get("/login", headers={"Host": host}).status_code == 200


def test_requests_from_other_sites_are_refused(client: TestClient, desk: Any) -> None:
    token = token_of(desk, "ana")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
        answer = client.post("/api/login", json={"token": token}, headers={"Origin": origin})
        assert answer.status_code == 403
    own = {"Origin": "http://127.0.0.1:8765"}
    assert client.post("/api/login", json={"token": token}, headers=own).status_code == 200


def test_a_large_request_is_refused_whatever_it_says_of_its_length(
    client: TestClient, desk: Any
) -> None:
    large = b" " * (MAX_BODY_BYTES + 1)
    assert client.post("/api/login", content=large).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * MAX_BODY_BYTES

    headers = {"Content-Type": "application/json"}
    assert client.post("/api/login", content=pieces(), headers=headers).status_code == 413
    assert desk.sql("SELECT count(*) FROM sessions") == [(0,)]


def test_a_body_is_too_large_that_comes_in_pieces_none_of_which_is() -> None:
    """The client of the tests above sends a body at once, whatever it is made of."""
    pieces = [b" " * 50_000, b" " * (MAX_BODY_BYTES - 50_000), b" "]
    taken: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces[len(taken)], "more_body": True}

    async def app(_: Scope, read: Receive, __: Send) -> None:
        while True:
            taken.append(len((await read())["body"]))

    async def send(_: Message) -> None:
        """Says nothing."""

    headers = [(b"host", b"127.0.0.1"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": "/api/login", "headers": headers}
    with pytest.raises(TooLargeError):
        asyncio.run(Guard(app, ["127.0.0.1"], NO_PROXIES)(scope, receive, send))
    assert sum(taken) == MAX_BODY_BYTES


@pytest.mark.parametrize("path", ["/login", "/health", "/static/annotate.js", "/nowhere"])
def test_every_response_carries_the_policy(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    for rule in (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_refusals_carry_the_policy_too(client: TestClient) -> None:
    answer = client.get("/login", headers={"Host": "evil.example"})
    assert "content-security-policy" in answer.headers


def test_the_pages_have_no_inline_script_or_style(client: TestClient, desk: Any) -> None:
    sign_in(client, desk, role="lead")
    for path in ("/", "/login", "/lead"):
        page = client.get(path).text
        assert "<style" not in page
        assert " style=" not in page
        assert " onclick" not in page
        assert page.count("<script") == page.count('<script src="/static/') == 1


def test_the_interface_is_not_described_to_strangers(client: TestClient) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


def test_files_beside_the_static_folder_are_not_served(client: TestClient) -> None:
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py"):
        assert client.get(path).status_code == 404
