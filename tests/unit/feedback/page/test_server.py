"""The server over HTTP: pairs and judgments, what the browser gets to know, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.server import ServerParams, create_app
from tests.unit.feedback.conftest import some_pairs
from tests.unit.feedback.page.conftest import KEY, bearer, judgment


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
    assert set(view) == {"state", "task", "mine", "round", "done", "pairs", "guidelines"}
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


def test_an_answer_rings_the_bell_of_the_watch_and_a_blank_reason_is_none(
    client: TestClient, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []
    monkeypatch.setattr(client.app.state.desk, "ring", lambda: rung.append("now"))  # type: ignore[attr-defined]
    headers = bearer(desk)
    for number, reason in enumerate((" \n", " too long \n")):
        task = client.post("/api/task", headers=headers).json()
        body = judgment(task, reason=reason, key=f"{KEY}-{number}")
        assert client.post("/api/judgments", headers=headers, json=body).status_code == 200
    given = desk.sql("SELECT reason FROM labels ORDER BY label_id")
    assert (rung, given) == (["now"] * 2, [(None,), ("too long",)])


def test_undo_says_whether_the_pair_comes_back(client: TestClient, desk: Any) -> None:
    desk.publish(some_pairs(10), overlap=2)
    desk.hire("bob", "cleo")
    headers, prompts = bearer(desk), []
    for number in range(2):
        task = client.post("/api/task", headers=headers).json()
        prompts.append(task["task"]["prompt"])
        body = judgment(task, choice="tie", key=f"answer-000{number}")
        client.post("/api/judgments", headers=headers, json=body)
        if number == 0:
            desk.answer("bob", "a")
            desk.answer("cleo", "a")
    undo = [{"key": f"undo-000{number}"} for number in range(2)]
    second, first = (client.post("/api/undo", headers=headers, json=one).json() for one in undo)
    assert (second["undone"], second["back"], second["task"]["prompt"]) == (True, True, prompts[1])
    # The two others agree, so that the pair needs no third answer.
    assert (first["undone"], first["back"]) == (True, False)
    assert first["task"]["prompt"] != prompts[0]


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


def test_an_open_page_keeps_the_version_of_the_guidelines_that_it_shows(
    client: TestClient, desk: Any, tmp_path: Path
) -> None:
    headers = bearer(desk)
    before = client.post("/api/task", headers=headers).json()
    other = tmp_path / "guidelines.md"
    other.write_text("Other rules.", encoding="utf-8")
    app = create_app(desk.database, ServerParams(guidelines=other))
    with TestClient(app, base_url="http://127.0.0.1") as again:
        body = judgment(before, guidelines=before["guidelines"])
        after = again.post("/api/judgments", headers=headers, json=body).json()
        # So the page can say that they have changed.
        assert after["guidelines"] != before["guidelines"]
        body = judgment(after, guidelines=after["guidelines"], key="answer-0002")
        assert again.post("/api/judgments", headers=headers, json=body).status_code == 200
    stored = desk.sql("SELECT guideline_hash FROM labels ORDER BY label_id")
    assert stored == [(before["guidelines"],), (after["guidelines"],)]


def test_a_pair_that_lay_open_over_a_long_weekend_can_be_answered(
    client: TestClient, desk: Any
) -> None:
    headers = bearer(desk)
    task = client.post("/api/task", headers=headers).json()
    body = judgment(task, visible_ms=4 * 24 * 3600 * 1000)
    assert client.post("/api/judgments", headers=headers, json=body).status_code == 200
    # The store does not believe that it was visible for longer than it has been given out.
    ((stored,),) = desk.sql("SELECT visible_ms FROM labels")
    assert 0 <= stored < 60_000
