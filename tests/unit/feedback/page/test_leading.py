"""What leads may do at the page, each right apart, and what the log says of it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from markupsafe import escape

from feedback.judgments import judgment_from_row, to_lines
from feedback.page.security import MAX_BODY_BYTES, MAX_PUBLISHED_BYTES
from feedback.page.server import ServerParams, create_app
from feedback.store import accounts, exporting
from feedback.store.accounts import RIGHTS
from preferences.records import pair_id

CALLS = {
    "pause": ("/api/lead/person", {"annotator_id": "ana", "paused": True}),
    "export": ("/api/lead/export", {"round": "r1", "form": "judgments"}),
    "publish": ("/api/lead/publish?round=r2", None),
}


@pytest.fixture
def client(desk: Any, make_pairs: Any) -> Iterator[TestClient]:
    desk.publish(make_pairs(3))
    desk.hire("ana")
    with TestClient(create_app(desk.database, ServerParams()), base_url="http://127.0.0.1") as one:
        yield one


def bearer(desk: Any, name: str, role: str = "lead", **given: Any) -> dict[str, str]:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, name, role=role, **given)
    return {"Authorization": f"Bearer {token}"}


def lines(pairs: Any) -> bytes:
    return to_lines([asdict(pair) for pair in pairs]).encode()


def call(client: TestClient, right: str, headers: dict[str, str], pairs: Any) -> Any:
    path, body = CALLS[right]
    if body is None:
        return client.post(path, headers=headers, content=lines(pairs))
    return client.post(path, headers=headers, json=body)


class Tags(HTMLParser):
    """The tags of a page with the names of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, tuple(name for name, _ in attrs)))


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</td></table><iframe src=javascript:alert(1)>",
    "{{ 7 * 7 }}",
    "<!--",
    "</title><svg/onload=alert(1)>",
)


def test_names_and_reasons_become_no_tags_of_the_overview(client: TestClient, desk: Any) -> None:
    headers = bearer(desk, "lea")
    desk.hire("ben")
    desk.answer("ben")
    plain = Tags(client.get("/lead", headers=headers).text).found
    desk.hire(*HOSTILE)
    with desk.database.writing() as connection:
        for name in HOSTILE:
            accounts.pause(connection, name, name, by="lea")
        accounts.pause(connection, "ben", HOSTILE[0], by="lea")
    desk.answer("ana")
    page = client.get("/lead", headers=headers).text
    assert all(escape(name) in page for name in HOSTILE)
    assert Tags(page).found <= plain | {("tr", ("class",))}


def log(desk: Any, kind: str) -> list[tuple[Any, ...]]:
    query = f"SELECT annotator_id, round, detail FROM events WHERE kind = '{kind}'"
    rows = desk.sql(f"{query} ORDER BY event_id")
    return [(*row[:2], json.loads(row[2]) if row[2] else None) for row in rows]


@pytest.mark.parametrize("held", RIGHTS)
def test_a_lead_may_do_what_they_have_the_right_to_and_nothing_else(
    client: TestClient, desk: Any, make_pairs: Any, held: str
) -> None:
    headers = bearer(desk, "lea", rights=[held])
    pairs = make_pairs(2, key="r2", start=50)
    for right in RIGHTS:
        answer = call(client, right, headers, pairs)
        if right == held:
            assert answer.status_code == 200, answer.text
        else:
            assert answer.status_code == 403
            assert answer.json()["detail"] == f"you have no right to {right} here"
    signs = {"pause": "data-person", "export": "data-export", "publish": 'id="publish"'}
    desk.hire("ben")
    desk.answer("ben")
    page = client.get("/lead", headers=headers).text
    assert {right for right, sign in signs.items() if sign in page} == {held}


@pytest.mark.parametrize("right", RIGHTS)
def test_annotators_strangers_and_paused_leads_may_do_nothing(
    client: TestClient, desk: Any, make_pairs: Any, right: str
) -> None:
    pairs = make_pairs(2, key="r2", start=50)
    before = [log(desk, kind) for kind in ("pause", "export", "publish")]
    assert call(client, right, {}, pairs).status_code == 401
    assert call(client, right, bearer(desk, "ben", "annotator"), pairs).status_code == 403
    headers = bearer(desk, "lea")
    with desk.database.writing() as connection:
        accounts.pause(connection, "lea", "on leave")
    assert call(client, right, headers, pairs).status_code == 409
    after = [log(desk, kind) for kind in ("pause", "export", "publish")]
    assert after == [[*before[0], ("lea", None, {"reason": "on leave"})], *before[1:]]


def test_a_lead_of_an_earlier_version_has_all_rights(client: TestClient, desk: Any) -> None:
    headers = bearer(desk, "lea")
    desk.sql("UPDATE annotators SET rights = NULL")
    assert call(client, "export", headers, []).status_code == 200


def test_the_log_says_who_exported_paused_and_published(
    client: TestClient, desk: Any, make_pairs: Any
) -> None:
    desk.answer("ana", "a")
    headers = bearer(desk, "lea")
    exported = call(client, "export", headers, [])
    (row,) = [json.loads(line) for line in exported.text.splitlines()]
    assert judgment_from_row(row).annotator_id == "ana"
    assert "filename*=UTF-8''r1-judgments.jsonl" in exported.headers["content-disposition"]
    assert call(client, "pause", headers, []).status_code == 200
    done = call(client, "publish", headers, make_pairs(2, key="r2", start=50))
    assert done.json() == {"added": 2, "kept": 0, "removed": 0}
    assert log(desk, "export") == [("lea", "r1", {"form": "judgments", "n": 1})]
    assert log(desk, "pause") == [("ana", None, {"reason": "paused by the lead", "by": "lea"})]
    assert log(desk, "publish")[1:] == [(None, "r2", {"added": 2, "removed": 0, "by": "lea"})]


@pytest.mark.parametrize("form", ["judgments", "trl", "label-studio", "csv"])
def test_every_form_can_be_exported(client: TestClient, desk: Any, form: str) -> None:
    desk.answer("ana", "a")
    body = {"round": "r1", "form": form}
    answer = client.post("/api/lead/export", headers=bearer(desk, "lea"), json=body)
    assert "prompt " in answer.text or form == "judgments"
    assert answer.headers["content-type"] == "application/octet-stream"


def test_an_export_keeps_nobody_waiting(
    client: TestClient, desk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*_: object) -> str:
        with closing(sqlite3.connect(tmp_path / "feedback.db", timeout=0.1)) as another:
            another.execute("BEGIN IMMEDIATE")
        return "all of it"

    monkeypatch.setattr(exporting, "_formatted", slowly)
    path, body = CALLS["export"]
    assert client.post(path, headers=bearer(desk, "lea"), json=body).text == "all of it"


def test_a_round_that_there_is_none_of_is_not_exported(client: TestClient, desk: Any) -> None:
    body = {"round": "r9", "form": "csv"}
    answer = client.post("/api/lead/export", headers=bearer(desk, "lea"), json=body)
    assert (answer.status_code, answer.json()["detail"]) == (404, "round r9 has not been published")
    assert log(desk, "export") == []


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 422, "comparisons.jsonl: no pairs"),
        (b"{", 422, "comparisons.jsonl:1: not JSON"),
        (b"\xff", 422, "comparisons.jsonl: not UTF-8 at byte 0"),
        (b'{"pair_id": 1}', 422, "comparisons.jsonl:1: pair_id is 1"),
        (b'{"prompt": ' + 100_000 * b"[", 422, "comparisons.jsonl:1: nested more than 64 levels"),
        (b'{"prompt": ' + 65 * b"[" + 65 * b"]" + b"}", 422, "nested more than 64 levels deep"),
        (b'{"prompt": ' + 5_000 * b"9" + b"}", 422, "jsonl:1: expected a number of fewer digits"),
        (b'{"prompt": [NaN]}', 422, "comparisons.jsonl:1: not JSON (NaN is not a JSON number)"),
        (b'{"prompt": [-1e999]}', 422, "comparisons.jsonl:1: expected a number that fits"),
        (None, 422, "is of round 'r1', expected 'r2'"),
        (b" " * (MAX_PUBLISHED_BYTES + 1), 413, "python -m feedback publish takes larger files"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(
    client: TestClient, desk: Any, make_pairs: Any, content: Any, status: int, message: str
) -> None:
    content = lines(make_pairs(1, start=50)) if content is None else content
    before = desk.sql("SELECT count(*) FROM pairs")
    path, headers = "/api/lead/publish?round=r2", bearer(desk, "lea")
    answer = client.post(path, headers=headers, content=content)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert "/tmp" not in answer.text
    assert desk.sql("SELECT count(*) FROM pairs") == before


@pytest.mark.parametrize("where", ["prompt", "message", "response_a", "response_b"])
def test_a_pair_with_a_nul_is_not_published(
    client: TestClient, desk: Any, make_pairs: Any, where: str
) -> None:
    (pair,) = make_pairs(1, key="r2", start=50)
    text: Any = "un\x00readable"
    name, value = where, text
    if where == "message":
        name, value = "prompt", [{"role": "user", "content": text}]
    pair = replace(pair, **{name: value})
    pair = replace(pair, pair_id=pair_id(pair.prompt, pair.response_a, pair.response_b))
    path, headers = "/api/lead/publish?round=r2", bearer(desk, "lea")
    answer = client.post(path, headers=headers, content=lines([pair]))
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        f"comparisons.jsonl: pair {pair.pair_id}: {name} contains U+0000, expected a text without",
    )


def test_a_round_of_any_name_is_exported_under_it(
    client: TestClient, desk: Any, make_pairs: Any
) -> None:
    desk.publish(make_pairs(1, key='r\u00fcnde\u2192"', start=50))
    body = {"round": 'r\u00fcnde\u2192"', "form": "csv"}
    answer = client.post("/api/lead/export", headers=bearer(desk, "lea"), json=body)
    assert answer.status_code == 200
    # UTF-8 of u with umlaut is C3 BC, of the arrow E2 86 92 (Unicode's charts).
    expected = "attachment; filename*=UTF-8''r%C3%BCnde%E2%86%92%22-csv.csv"
    assert answer.headers["content-disposition"] == expected


def test_only_the_file_of_pairs_may_be_larger_than_a_request(client: TestClient, desk: Any) -> None:
    headers = bearer(desk, "lea")
    content = b" " * (MAX_BODY_BYTES + 1)
    assert client.post("/api/lead/export", headers=headers, content=content).status_code == 413
    path = "/api/lead/publish?round=r2"
    assert client.post(path, headers=headers, content=content).status_code == 422
