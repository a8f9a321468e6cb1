"""Who may sign in: tokens and sessions that are hashed and end, and names that can be read."""

from typing import Any

import pytest

from feedback.store import accounts, database, schema


def test_tokens_and_sessions_are_stored_as_hashes(desk: Any) -> None:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
    stored = str([desk.sql(f"SELECT * FROM {table}") for table in schema.metadata.tables])
    assert "ana" in stored
    assert token not in stored
    assert session not in stored


def test_a_new_token_ends_the_old_one_and_its_sessions(desk: Any) -> None:
    with desk.database.writing() as connection:
        old = accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
        assert accounts.by_session(connection, session) is not None
        new = accounts.new_token(connection, "ana", role="lead")
        assert accounts.by_token(connection, old) is None
        assert accounts.by_session(connection, session) is None
        person = accounts.by_token(connection, new)
    assert (person.annotator_id, person.role) == ("ana", "lead")


def test_a_session_ends_by_itself(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with desk.database.writing() as connection:
        accounts.new_token(connection, "ana")
        session = accounts.open_session(connection, "ana")
        later = database.now_ms() + accounts.SESSION_MS + 1
        monkeypatch.setattr(accounts, "now_ms", lambda: later)
        assert accounts.by_session(connection, session) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 65,
        "a\nb",
        "a\x00",
        " ",
        "\u200b",
        "\u202e\u2066",
        "\u2800",
        "\u3164",
        "\u0301",
        "\u200d",
        "ana\u202e",
        "ana\u200b",
        " ana",
        "ana\u00a0",
        "ana\u0085",
    ],
)
def test_a_name_that_is_none_is_refused(desk: Any, name: str) -> None:
    with desk.database.writing() as connection, pytest.raises(ValueError, match="annotator is"):
        accounts.new_token(connection, name)


@pytest.mark.parametrize(
    "name", ["ana", "Ana María", "李", "عليرضا", "نیم\u200cفاصله", "👩\u200d🔬"]
)
def test_a_name_of_any_script_is_taken(desk: Any, name: str) -> None:
    with desk.database.writing() as connection:
        token = accounts.new_token(connection, name)
        assert accounts.by_token(connection, token).annotator_id == name


def test_a_source_of_imported_judgments_gets_no_token(desk: Any) -> None:
    row = {"annotator_id": "ana", "role": "source", "kind": "import", "token_hash": "none"}
    with desk.database.writing() as connection:
        added = schema.annotators.insert().values(**row, created_ms=1, judged_from_label=0)
        connection.execute(added)
        with pytest.raises(ValueError, match=r"ana is known as a source of kind import, .*another"):
            accounts.new_token(connection, "ana")
    assert desk.sql("SELECT role, token_hash FROM annotators") == [("source", "none")]


COMPOSED, DECOMPOSED = "Jos\u00e9", "Jose\u0301"


@pytest.mark.parametrize("first", [COMPOSED, DECOMPOSED])
def test_one_name_in_two_spellings_of_unicode_is_one_person(desk: Any, first: str) -> None:
    """A keyboard gives é as one character, a file name of macOS as e and its accent."""
    other = DECOMPOSED if first == COMPOSED else COMPOSED
    desk.hire(first, other)
    assert desk.sql("SELECT annotator_id FROM annotators") == [(COMPOSED,)]
    with desk.database.writing() as connection:
        accounts.pause(connection, DECOMPOSED, "tired")
        assert accounts.paused_reason(connection, COMPOSED) == "tired"
        accounts.resume(connection, DECOMPOSED)
        assert accounts.paused_reason(connection, COMPOSED) is None
        assert accounts.by_name(connection, DECOMPOSED, "csrf").annotator_id == COMPOSED


def test_a_store_that_has_the_other_spelling_keeps_it(desk: Any) -> None:
    desk.hire("Jose")
    desk.sql(f"UPDATE annotators SET annotator_id = '{DECOMPOSED}'")
    desk.hire(COMPOSED, DECOMPOSED)
    assert desk.sql("SELECT annotator_id FROM annotators") == [(DECOMPOSED,)]


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        (None, ("lead", "pause")),
        ("lead", ("lead", "export,pause,publish")),
        ("annotator", ("annotator", None)),
    ],
)
def test_a_new_token_of_a_lead_is_a_leads_unless_another_role_is_asked_for(
    desk: Any, asked: str | None, then: tuple[str, str | None]
) -> None:
    with desk.database.writing() as connection:
        accounts.new_token(connection, "lea", role="lead", rights=["pause"])
        accounts.new_token(connection, "lea", role=asked)
    assert desk.sql("SELECT role, rights FROM annotators") == [then]
