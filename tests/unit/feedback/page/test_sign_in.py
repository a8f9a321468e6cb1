"""Who is let in over HTTP: tokens, sessions, their cookie and the CSRF token of each change."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.guesses import FREE
from tests.unit.feedback.page.conftest import KEY, judgment, sign_in, token_of


def test_a_stranger_is_sent_to_the_login_page(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.post("/api/task").status_code == 401


def test_a_wrong_token_is_refused(client: TestClient) -> None:
    assert client.post("/api/login", json={"token": "guess"}).status_code == 401


def test_an_expired_token_says_so_and_is_no_guess(client: TestClient, desk: Any) -> None:
    token = token_of(desk, "ana")
    desk.sql("UPDATE annotators SET token_expires_ms = 1700000000000")
    for _ in range(FREE + 2):
        answer = client.post("/api/login", json={"token": token})
        assert (answer.status_code, answer.json()["detail"]) == (
            401,
            "your token expired on 2023-11-14; ask for a new one",
        )
    headers = {"Authorization": f"Bearer {token}"}
    assert client.post("/api/task", headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["/", "/lead", "/api/task"])
def test_an_ended_session_is_no_guess_and_its_cookie_is_deleted(
    client: TestClient, desk: Any, path: str
) -> None:
    right = token_of(desk, "ana")
    old = {"Cookie": "feedback_session=ended"}
    for _ in range(FREE + 2):
        method = "POST" if path.startswith("/api") else "GET"
        answer = client.request(method, path, headers=old, follow_redirects=False)
        assert answer.status_code == (401 if method == "POST" else 303)
        cookie = answer.headers["set-cookie"].lower()
        assert cookie.startswith('feedback_session=""; ')
        assert "max-age=0" in cookie
    assert client.post("/api/login", json={"token": right}).status_code == 200


def test_a_session_that_holds_is_kept(client: TestClient, desk: Any) -> None:
    sign_in(client, desk)
    wrong = {"Authorization": "Bearer guess"}
    # An annotator at the lead's page; a change without the CSRF token; a wrong token beside it.
    for answer in (
        client.get("/lead", follow_redirects=False),
        client.post("/api/task"),
        client.post("/api/task", headers=wrong),
    ):
        assert answer.status_code in (303, 401, 403)
        assert "set-cookie" not in answer.headers
    assert client.get("/", follow_redirects=False).status_code == 200


def test_the_session_cookie_is_out_of_reach_for_scripts_and_other_sites(
    client: TestClient, desk: Any
) -> None:
    answer = client.post("/api/login", json={"token": token_of(desk, "ana")})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert f"max-age={30 * 24 * 3600};" in cookie


def test_a_change_without_the_csrf_token_is_refused(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    for path in ("/api/task", "/api/undo", "/api/logout"):
        assert client.post(path, json={"key": KEY}).status_code == 403, path
    assert client.post("/api/task", headers={"X-CSRF-Token": "x"}).status_code == 403
    assert client.post("/api/task", headers={"X-CSRF-Token": csrf}).status_code == 200


def test_a_judgment_without_the_csrf_token_is_not_written(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    task = client.post("/api/task", headers={"X-CSRF-Token": csrf}).json()
    assert client.post("/api/judgments", json=judgment(task)).status_code == 403
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


def test_a_browser_that_signs_out_is_out(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    client.post("/api/logout", headers={"X-CSRF-Token": csrf})
    client.cookies.clear()
    assert client.get("/", follow_redirects=False).status_code == 303
    assert desk.sql("SELECT count(*) FROM sessions") == [(0,)]


@pytest.mark.parametrize("second", ["127.0.0.1:8766", "127.0.0.1:99999"])
def test_two_pages_of_one_machine_do_not_sign_each_others_people_out(
    client: TestClient, desk: Any, second: str
) -> None:
    sign_in(client, desk, "ana")
    # A browser sends cookies to all ports of a host. To a page of another store, which `make
    # annotate VARIANT=name` opens, ana's is that of nobody.
    there = {"Host": second}
    login = client.post("/api/login", json={"token": token_of(desk, "ben")}, headers=there)
    assert login.status_code == 200
    assert 'class="who">ben<' in client.get("/", headers=there).text
    assert 'class="who">ana<' in client.get("/").text
    csrf = client.get("/", headers=there).text.split('name="csrf" content="')[1].split('"')[0]
    out = client.post("/api/logout", headers=there | {"X-CSRF-Token": csrf})
    assert out.status_code == 200
    assert client.get("/", headers=there, follow_redirects=False).status_code == 303
    assert 'class="who">ana<' in client.get("/").text
