"""What was withdrawn leaves the store, its file included, and the pairs need answers again."""

from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from feedback.judgments import Pair
from feedback.quality.answers import load_answers
from feedback.store import accounts, rounds, schema
from feedback.store.database import Database
from feedback.store.exporting import ENDINGS, export
from feedback.store.withdrawing import Held, held, withdraw
from preferences.records import pair_id, prompt_text
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS, tombstone
from tests.unit.feedback.conftest import Desk, some_pairs

SALT = "00" * 16


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """Two people answered three pairs, two answers each; ann gave a reason once."""
    desk.publish(some_pairs(3), overlap=2)
    desk.hire("ann", "bob")
    for name in ("ann", "bob"):
        for _ in range(3):
            task = desk.serve(name)
            assert task is not None
            desk.submit(task, name=name)
    return desk


def find(desk: Desk, *, name: str | None = None, said: str | None = None) -> Held:
    with desk.database.reading() as connection:
        return held(
            connection,
            person=lambda one, kind: one == name,
            said=lambda text: said is not None and said in text,
        )


def remove(desk: Desk, found: Held) -> None:
    with desk.database.writing() as connection:
        withdraw(connection, found)
    desk.database.compact()


def content(desk: Desk, folder: Path) -> bytes:
    """Every byte of the store on disk: SQLite's files, or PostgreSQL's of tables and indexes."""
    if not list(folder.iterdir()):
        # The log that PostgreSQL writes ahead stays until it is recycled.
        desk.sql("CHECKPOINT")
        files = desk.sql("SELECT pg_read_binary_file(pg_relation_filepath(oid)) FROM pg_class "
                         "WHERE relkind IN ('r', 'i', 't') AND pg_relation_size(oid) > 0 "
                         "AND oid >= 16384")  # fmt: skip
        return b"".join(bytes(row[0]) for row in files)
    desk.database.close()
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_an_annotator_leaves_no_byte_on_disk(desk: Desk, tmp_path: Path) -> None:
    found = find(desk, name="ann")
    assert found.counts["labels"] == 3
    assert found.counts["assignments"] == 3

    remove(desk, found)

    assert find(desk, name="ann").counts == {}
    with desk.database.reading() as connection:
        left = connection.execute(select(schema.labels.c.annotator_id)).scalars().all()
    assert left == ["bob"] * 3
    stored = content(desk, tmp_path)
    assert b"bob" in stored
    assert b"ann" not in stored.replace(b"annotator", b"")


def test_pairs_that_lost_an_answer_need_one_again(desk: Desk) -> None:
    with desk.database.reading() as connection:
        assert [one.complete for one in rounds.progress(connection)] == [True]

    remove(desk, find(desk, name="ann"))

    with desk.database.reading() as connection:
        (now,) = rounds.progress(connection)
    assert (now.complete, now.judgments, now.missing) == (False, 3, 3)


def test_pairs_that_waited_for_whoever_goes_are_settled_without(desk: Desk) -> None:
    desk.hire("cleo")
    desk.publish(some_pairs(4), overlap=2)
    for name, choice in (("ann", "a"), ("bob", "b")):
        desk.answer(name, choice)
    assert desk.progress().missing == 1

    remove(desk, find(desk, name="cleo"))

    assert desk.progress().complete


def test_who_was_resumed_is_checked_again_by_the_next_answers(desk: Desk) -> None:
    with desk.database.writing() as connection:
        accounts.pause(connection, "ann", "too many guesses")
        accounts.resume(connection, "ann")

    remove(desk, find(desk, name="bob"))
    desk.publish(some_pairs(5), overlap=2)
    for _ in range(2):
        desk.answer("ann")

    with desk.database.reading() as connection:
        assert [one.counts for one in load_answers(connection)] == [False] * 3 + [True] * 2


def test_a_pair_goes_with_its_answers_and_its_traces_in_the_log(desk: Desk, tmp_path: Path) -> None:
    found = find(desk, said="prompt 1")
    assert (len(found.pairs), len(found.labels)) == (1, 2)

    remove(desk, found)

    with desk.database.reading() as connection:
        (now,) = rounds.progress(connection)
    assert (now.complete, now.pairs, now.judgments) == (True, 2, 4)
    stored = content(desk, tmp_path)
    assert b"prompt 2" in stored
    assert b"prompt 1" not in stored


def test_the_reason_of_a_pause_goes_and_the_pause_stays(desk: Desk, tmp_path: Path) -> None:
    with desk.database.writing() as connection:
        accounts.pause(connection, "bob", "shares a screen with Kim Miller", by="lead")

    found = find(desk, said="Kim Miller")
    assert found.counts == {"events": 1, "pauses": 1}
    remove(desk, found)

    with desk.database.reading() as connection:
        assert accounts.paused_reason(connection, "bob") == "the reason was withdrawn"
    assert b"Kim Miller" not in content(desk, tmp_path)


def test_the_log_says_only_how_many_rows_went_and_is_append_only_again(desk: Desk) -> None:
    remove(desk, find(desk, name="ann"))

    with desk.database.reading() as connection:
        events = connection.execute(select(schema.events).where(schema.events.c.kind == "forget"))
        (event,) = events.all()
    assert event.annotator_id is None
    assert '"labels": 3' in event.detail
    for table in ("labels", "events"):
        for change in (f"DELETE FROM {table}", f"UPDATE {table} SET annotator_id = 'x'"):
            with (
                pytest.raises(DBAPIError, match="append-only"),
                desk.database.writing() as connection,
            ):
                connection.execute(text(change))


def test_an_export_leaves_out_whom_a_restored_backup_brings_back(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with desk.database.writing() as connection:
        assert export(connection, "r1", "judgments").judgments == 6
    Path(WITHDRAWN_JUDGMENTS).parent.mkdir(parents=True)
    Path(WITHDRAWN_JUDGMENTS).write_text(tombstone("annotator", "ann", SALT).line())

    with desk.database.writing() as connection:
        done = export(connection, "r1", "csv")

    assert done.judgments == 3
    assert ("ann" in done.text.replace("annotator", ""), "bob" in done.text) == (False, True)


def test_an_export_leaves_out_pairs_with_a_withdrawn_text(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(WITHDRAWN_TEXTS).parent.mkdir(parents=True)
    Path(WITHDRAWN_TEXTS).write_text(tombstone("text", "prompt 1", SALT).line())

    with desk.database.writing() as connection:
        done = {form: export(connection, "r1", form) for form in ENDINGS}

    assert {(one.pairs, one.judgments) for one in done.values()} == {(2, 4)}
    assert not [form for form, one in done.items() if "prompt 1" in one.text]
    assert "prompt 2" in done["label-studio"].text


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_the_file_gives_up_the_pages_of_what_left(desk: Desk) -> None:
    # Where SQLite is built without secure_delete, free pages still hold the bytes.
    desk.publish(some_pairs(400, start=3))
    _, before = pages(desk)

    remove(desk, find(desk, said="prompt"))

    free, after = pages(desk)
    assert (free, after < before) == (0, True)


def pages(desk: Desk) -> tuple[int, int]:
    """The free ones of the database's file, and all."""
    with desk.database.reading() as connection:
        found = [
            connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("freelist_count", "page_count")
        ]
    return found[0], found[1]


def test_a_store_can_be_opened_again_afterwards(desk: Desk, store: str) -> None:
    remove(desk, find(desk, name="ann"))
    desk.database.close()

    again = Database(store)

    with again.reading() as connection:
        assert len(rounds.progress(connection)) == 1
    again.close()


def test_a_conversation_is_found_by_its_text_as_a_prompt(desk: Desk) -> None:
    """`tasks.forget --prompt` knows it as one text, and the store has it as messages."""
    talk = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who is Kim?"}]
    pair = Pair(pair_id=pair_id(talk, "x", "y"), round="r2", prompt=talk,
                response_a="x", response_b="y")  # fmt: skip
    desk.publish([pair])

    with desk.database.reading() as connection:
        found = held(
            connection, person=lambda *_: False, said=lambda text: text == prompt_text(talk)
        )

    assert found.pairs == (pair.pair_id,)
