"""Whom the overview and `status` list, and what they say of somebody without counted answers."""

import re
from typing import Any

from fastapi.testclient import TestClient

from feedback.page.lead import lead_view
from feedback.quality.annotators import QualityParams
from feedback.store import accounts
from feedback.store.importing import take
from preferences.records import Judgment
from tests.unit.feedback.page.conftest import bearer


def buttons(client: TestClient, headers: dict[str, str]) -> dict[str, str]:
    """Name -> what the button in their row would do."""
    html = client.get("/lead", headers=headers).text
    return dict(re.findall(r'data-person="([^"]*)" data-paused="[a-z]+">(\w+)<', html))


def test_who_was_resumed_or_has_not_answered_yet_can_be_paused_and_resumed(
    client: TestClient, desk: Any
) -> None:
    desk.hire("ana", "bo")
    desk.answer("ana")
    lead = bearer(desk, "lea", "lead")
    with desk.database.writing() as connection:
        accounts.pause(connection, "ana", "late")
        accounts.resume(connection, "ana")
    assert buttons(client, lead) == {"ana": "Pause", "bo": "Pause", "lea": "Pause"}
    for name in ("ana", "bo"):
        change = {"annotator_id": name, "paused": True}
        assert client.post("/api/lead/person", headers=lead, json=change).status_code == 200
    assert buttons(client, lead) == {"ana": "Resume", "bo": "Resume", "lea": "Pause"}


def test_the_side_that_was_chosen_is_counted_without_what_was_said_before_a_pause(
    desk: Any, make_pairs: Any
) -> None:
    desk.publish(make_pairs(5))
    desk.hire("ana")
    for _ in range(3):
        desk.answer("ana", "left")
    with desk.database.writing() as connection:
        accounts.pause(connection, "ana", "late")
        accounts.resume(connection, "ana")
    for _ in range(2):
        desk.answer("ana", "right")
    with desk.database.reading() as connection:
        view = lead_view(connection, QualityParams())
    # Wilson, 95 %, of 0 of 2; both on one side have P = 2 / 4.
    assert (view["left"], view["left_p"]) == ("0.00 (0.00 to 0.66, n=2)", 0.5)


def test_sources_of_imported_judgments_are_not_listed_as_people_without_answers(
    client: TestClient, desk: Any, make_pairs: Any
) -> None:
    one = Judgment.of(make_pairs(1)[0], annotator_id="label-studio-7", kind="import", choice="a")
    with desk.database.writing() as connection:
        assert take(connection, [one], "r1").taken == 1
    assert "label-studio-7" not in client.get("/lead", headers=bearer(desk, "lea", "lead")).text


def test_status_lists_who_has_no_answers_yet_and_who_is_paused_without_any(
    desk: Any, make_pairs: Any, run: Any
) -> None:
    desk.publish(make_pairs(2))
    desk.hire("ana", "bo")
    desk.answer("ana")
    with desk.database.writing() as connection:
        accounts.pause(connection, "bo", "on leave")
    _, out, _ = run("status")
    assert "ana: 1 answers; no flags" in out
    assert "bo: 0 answers; paused: on leave" in out


def test_whoever_needs_attention_comes_first_and_the_silent_come_last(
    desk: Any, make_pairs: Any
) -> None:
    desk.publish(make_pairs(2))
    desk.hire("ana", "bo", "cy")
    desk.answer("bo")
    with desk.database.writing() as connection:
        accounts.pause(connection, "cy", "on leave")
    with desk.database.reading() as connection:
        view = lead_view(connection, QualityParams())
    assert [row["name"] for row in view["people"]] == ["cy", "bo", "ana"]


def test_kappa_says_over_whom_it_is_a_mean(client: TestClient, desk: Any, make_pairs: Any) -> None:
    desk.publish(make_pairs(20), overlap=2)
    desk.hire("ana", "bo")
    lead = bearer(desk, "lea", "lead")

    def kappa() -> str:
        html = client.get("/lead", headers=lead).text
        (found,) = re.findall(r"<dt>Cohen's kappa</dt><dd>(.*?)</dd>", html)
        return str(found)

    for number in range(20):
        if number == 19:
            assert kappa() == "- (no two people have judged 20 pairs in common)"
        for name in ("ana", "bo"):
            desk.answer(name, "ab"[number % 2])
    assert kappa().startswith("1.000 (mean over 1 of 1 combinations of two people; ")
