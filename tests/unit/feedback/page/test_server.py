"""The server over HTTP: who may do what, what the browser gets to know, what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.guesses import FREE
from feedback.page.security import MAX_BODY_BYTES
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


def test_a_change_without_the_csrf_token_is_refused(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    for path in ("/api/task", "/api/undo", "/api/judgments", "/api/logout"):
        assert client.post(path, json={"key": KEY}).status_code in (403, 422), path
    assert client.post("/api/task", headers={"X-CSRF-Token": "x"}).status_code == 403
    assert client.post("/api/task", headers={"X-CSRF-Token": csrf}).status_code == 200


def test_a_judgment_without_the_csrf_token_is_not_written(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    task = client.post("/api/task", headers={"X-CSRF-Token": csrf}).json()
    assert client.post("/api/judgments", json=judgment(task)).status_code == 403
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


def test_a_session_goes_from_pair_to_pair_to_the_end(client: TestClient, desk: Any) -> None:
    headers = bearer(desk)
    view = client.post("/api/task", headers=headers).json()
    seen = []
    while view["state"] == "pair":
        seen.append(view["task"]["prompt"])
        body = judgment(view, choice="right", strength=2, key=f"{KEY}-{len(seen)}")
        view = client.post("/api/judgments", headers=headers, json=body).json()
        assert view["saved"] is True
    assert view["state"] == "empty"
    assert len(set(seen)) == 10
    assert (view["mine"], view["done"], view["pairs"]) == (10, 10, 10)
    assert desk.sql("SELECT count(*) FROM labels WHERE strength = 2") == [(10,)]


def test_the_browser_learns_nothing_but_texts(client: TestClient, desk: Any) -> None:
    view = client.post("/api/task", headers=bearer(desk)).json()
    assert set(view) == {"state", "task", "mine", "round", "done", "pairs"}
    texts = {"prompt", "left", "right", "prompt_raw", "left_raw", "right_raw"}
    assert set(view["task"]) == {"assignment_id", "left_cut", "right_cut", *texts}
    page = client.post("/api/task", headers=bearer(desk)).text
    ((pair_id,),) = desk.sql("SELECT pair_id FROM assignments WHERE state = 'open'")
    assert pair_id not in page
    assert "swap" not in page
    assert "purpose" not in page


def test_a_retried_submission_is_confirmed_and_written_once(client: TestClient, desk: Any) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    first = client.post("/api/judgments", headers=headers, json=judgment(task)).json()
    second = client.post("/api/judgments", headers=headers, json=judgment(task)).json()
    assert (first["fresh"], second["fresh"]) == (True, False)
    assert first["task"] == second["task"]
    assert desk.sql("SELECT count(*) FROM labels") == [(1,)]


def test_undo_gives_the_pair_back(client: TestClient, desk: Any) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    client.post("/api/judgments", headers=headers, json=judgment(task))
    view = client.post("/api/undo", headers=headers, json={"key": "undo-0001"}).json()
    assert (view["undone"], view["task"]) == (True, task["task"])


def test_a_refused_answer_says_why(client: TestClient, desk: Any, make_pairs: Any) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    desk.publish(make_pairs(3, start=500))
    answer = client.post("/api/judgments", headers=headers, json=judgment(task))
    assert answer.status_code == 409
    assert "round r1 no longer contains this pair" in answer.json()["detail"]


@pytest.mark.parametrize(
    "change",
    [
        {"choice": "a"},
        {"choice": "skip"},
        {"choice": "skip", "reason": "  "},
        {"strength": 5},
        {"strength": "3"},
        {"strength": True},
        {"assignment_id": "x"},
        {"key": "short"},
        {"key": "k" * 65},
        {"reason": "r" * 2001},
        {"visible_ms": -1},
        {"annotator_id": "ben"},
    ],
)
def test_a_body_beyond_its_limits_is_refused(
    client: TestClient, desk: Any, change: dict[str, Any]
) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    answer = client.post("/api/judgments", headers=headers, json=judgment(task, **change))
    assert answer.status_code == 422
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


@pytest.mark.parametrize("choice", ["skip", "left"])
def test_a_reason_with_a_nul_character_is_refused_with_a_clear_message(
    client: TestClient, desk: Any, choice: str
) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    body = judgment(task, choice=choice, reason="un\x00readable")
    answer = client.post("/api/judgments", headers=headers, json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "body.reason: Value error, contains the character U+0000, which no file of judgments may"
    )
    assert desk.sql("SELECT count(*) FROM labels") == [(0,)]


def test_a_reason_that_is_no_text_is_refused_and_not_fatal(client: TestClient, desk: Any) -> None:
    headers = bearer(desk) | {"Content-Type": "application/json"}
    task = client.post("/api/task", headers=headers).json()
    body = '{"assignment_id": "%s", "choice": "skip", "reason": "\\ud800", "key": "%s"}'
    content = body % (task["task"]["assignment_id"], KEY)
    answer = client.post("/api/judgments", headers=headers, content=content)
    assert answer.status_code == 422


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
    assert client.post("/api/login", content=pieces(), headers=headers).status_code in (400, 413)
    assert desk.sql("SELECT count(*) FROM sessions") == [(0,)]


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


def test_a_paused_person_is_informed_and_gets_no_pair(client: TestClient, desk: Any) -> None:
    headers = bearer(desk)
    with desk.database.writing() as connection:
        accounts.pause(connection, "ana", "too many guesses")
    view = client.post("/api/task", headers=headers).json()
    assert (view["state"], view["reason"]) == ("paused", "too many guesses")
    assert "task" not in view


def paused(desk: Any, name: str = "ana") -> None:
    with desk.database.writing() as connection:
        accounts.pause(connection, name, "too many guesses")


def test_a_paused_person_can_neither_answer_nor_undo(client: TestClient, desk: Any) -> None:
    headers = bearer(desk)
    first = client.post("/api/task", headers=headers).json()
    second = client.post("/api/judgments", headers=headers, json=judgment(first)).json()
    paused(desk)
    body = judgment(second, key="answer-0002")
    for path, given in (("/api/judgments", body), ("/api/undo", {"key": "undo-0001"})):
        answer = client.post(path, headers=headers, json=given)
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "you are paused: too many guesses",
        )
    assert desk.sql("SELECT choice FROM labels WHERE revision > 1 OR label_id > 1") == []


def test_an_answer_that_was_saved_before_a_pause_is_still_confirmed(
    client: TestClient, desk: Any
) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    client.post("/api/judgments", headers=headers, json=judgment(task))
    paused(desk)
    # The first confirmation was lost on its way.
    again = client.post("/api/judgments", headers=headers, json=judgment(task)).json()
    assert (again["saved"], again["fresh"], again["state"]) == (True, False, "paused")


def test_a_pause_between_signing_in_and_the_work_holds(client: TestClient, desk: Any) -> None:
    with desk.database.writing() as connection:
        person = accounts.by_token(connection, accounts.new_token(connection, "ana"))
        accounts.pause(connection, "ana", "too many guesses")
        view = client.app.state.desk.work(connection, person)
    assert (view["state"], view["reason"]) == ("paused", "too many guesses")
    assert desk.sql("SELECT count(*) FROM assignments") == [(0,)]


def test_a_paused_lead_changes_nobody(client: TestClient, desk: Any) -> None:
    lead = bearer(desk, "lea", role="lead")
    paused(desk, "lea")
    for name in ("lea", "ana"):
        change = {"annotator_id": name, "paused": False}
        answer = client.post("/api/lead/person", headers=lead, json=change)
        assert (answer.status_code, answer.json()["detail"]) == (
            409,
            "you are paused: too many guesses",
        )
    assert desk.sql("SELECT paused_reason FROM annotators") == [("too many guesses",)]


@pytest.mark.parametrize("name", ["nobody", "a\x00b"])
def test_nobody_who_is_none_is_paused(client: TestClient, desk: Any, name: str) -> None:
    lead = bearer(desk, "lea", role="lead")
    change = {"annotator_id": name, "paused": True}
    answer = client.post("/api/lead/person", headers=lead, json=change)
    assert (answer.status_code, answer.json()["detail"]) == (404, f"no annotator {name!r}")
    assert desk.sql("SELECT count(*) FROM events WHERE kind = 'pause'") == [(0,)]


def test_only_the_lead_sees_the_overview_and_pauses_people(client: TestClient, desk: Any) -> None:
    change = {"annotator_id": "ana", "paused": True}
    headers = bearer(desk, "ana")
    assert client.get("/lead", headers=headers, follow_redirects=False).status_code == 303
    assert client.post("/api/lead/person", headers=headers, json=change).status_code == 403
    lead = bearer(desk, "lea", role="lead")
    assert "Krippendorff" in client.get("/lead", headers=lead).text
    assert client.post("/api/lead/person", headers=lead, json=change).status_code == 200
    assert client.post("/api/task", headers=headers).json()["state"] == "paused"
    change["paused"] = False
    client.post("/api/lead/person", headers=lead, json=change)
    assert client.post("/api/task", headers=headers).json()["state"] == "pair"


def test_a_browser_that_signs_out_is_out(client: TestClient, desk: Any) -> None:
    csrf = sign_in(client, desk)
    client.post("/api/logout", headers={"X-CSRF-Token": csrf})
    client.cookies.clear()
    assert client.get("/", follow_redirects=False).status_code == 303
    assert desk.sql("SELECT count(*) FROM sessions") == [(0,)]


def test_the_label_holds_the_version_of_the_guidelines(
    client: TestClient, desk: Any, tmp_path: Path
) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    client.post("/api/judgments", headers=headers, json=judgment(task))
    ((stored,),) = desk.sql("SELECT guideline_hash FROM labels")
    assert stored in client.get("/", headers=headers).text
    other = tmp_path / "guidelines.md"
    other.write_text("Other rules.", encoding="utf-8")
    app = create_app(desk.database, ServerParams(guidelines=other))
    with TestClient(app, base_url="http://127.0.0.1") as again:
        page = again.get("/", headers=headers).text
    assert "Other rules." in page
    assert stored not in page
