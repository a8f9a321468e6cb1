"""Who is paused gets no pair, answers none and changes nobody; only a lead pauses people."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.store import accounts
from tests.unit.feedback.page.conftest import bearer, judgment


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
