"""What was withdrawn leaves the store, its file included, and the pairs need answers again."""

from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from feedback.store import rounds, schema
from feedback.store.database import Database
from feedback.store.exporting import ENDINGS, export
from feedback.store.withdrawing import Held, held, withdraw
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS, tombstone
from tests.unit.feedback.conftest import Desk, some_pairs

SALT = "00" * 16


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Two people answered three pairs, two answers each; ann gave a reason once."""
    desk = Desk(tmp_path / "store.db")
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


def test_an_annotator_leaves_no_byte_in_the_file(desk: Desk, tmp_path: Path) -> None:
    found = find(desk, name="ann")
    assert found.counts["labels"] == 3
    assert found.counts["assignments"] == 3

    remove(desk, found)

    assert find(desk, name="ann").counts == {}
    with desk.database.reading() as connection:
        left = connection.execute(select(schema.labels.c.annotator_id)).scalars().all()
    assert left == ["bob"] * 3
    desk.database.close()
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert any(b"bob" in content for content in files)
    assert not any(b"ann" in content.replace(b"annotator", b"") for content in files)


def test_pairs_that_lost_an_answer_need_one_again(desk: Desk) -> None:
    with desk.database.reading() as connection:
        assert [one.complete for one in rounds.progress(connection)] == [True]

    remove(desk, find(desk, name="ann"))

    with desk.database.reading() as connection:
        (now,) = rounds.progress(connection)
    assert (now.complete, now.judgments, now.missing) == (False, 3, 3)


def test_a_pair_goes_with_its_answers_and_its_traces_in_the_log(desk: Desk, tmp_path: Path) -> None:
    found = find(desk, said="prompt 1")
    assert (len(found.pairs), len(found.labels)) == (1, 2)

    remove(desk, found)

    with desk.database.reading() as connection:
        (now,) = rounds.progress(connection)
    assert (now.complete, now.pairs, now.judgments) == (True, 2, 4)
    desk.database.close()
    assert not any(b"prompt 1" in path.read_bytes() for path in tmp_path.iterdir())


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
                pytest.raises(IntegrityError, match="append-only"),
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


def test_a_store_can_be_opened_again_afterwards(desk: Desk, tmp_path: Path) -> None:
    remove(desk, find(desk, name="ann"))
    desk.database.close()

    again = Database(tmp_path / "store.db")

    with again.reading() as connection:
        assert len(rounds.progress(connection)) == 1
    again.close()
