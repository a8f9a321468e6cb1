"""The labelling store on PostgreSQL, for teams: a server of the test's own on 127.0.0.1."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy.exc

from feedback.annotators import LabelParams, MissingJudgmentsError
from feedback.judgments import read_judgments
from feedback.page import notify
from feedback.people import PeopleAnnotator
from feedback.store import accounts, rounds
from tests.postgres import Postgres
from tests.unit.feedback.conftest import Desk, some_pairs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(postgres: Postgres) -> Iterator[str]:
    with postgres.database("labels") as address:
        yield address


@pytest.fixture(scope="module")
def desk(url: str) -> Iterator[Desk]:
    opened = Desk(url)
    opened.hire("ana", "ben", "cleo")
    yield opened
    opened.database.close()


def test_a_round_is_labelled_undone_announced_and_exported(
    desk: Desk, url: str, tmp_path: Path
) -> None:
    pairs = some_pairs(6)
    people = PeopleAnnotator(LabelParams(annotators="people", store=url, overlap=2))
    with pytest.raises(MissingJudgmentsError, match="round r1 waits for 12 of 12 judgments"):
        people.judge(pairs)
    while any([desk.answer(name, "a") for name in ("ana", "ben", "cleo")]):
        pass
    undone = desk.undo("ana")
    assert undone is not None
    assert desk.progress().missing == 1
    assert desk.answer("ana", "b") == undone
    with desk.database.reading() as connection:
        assert notify.unannounced(connection) == []
    third = [desk.answer(name, "a") for name in ("ben", "cleo")]
    assert [task.pair for task in third if task] == [undone.pair]
    with desk.database.reading() as connection:
        assert notify.unannounced(connection) == ["r1"]

    judgments = people.judge(pairs)
    assert Counter(one.choice for one in judgments) == {"a": 12, "b": 1}
    out = tmp_path / "judgments.jsonl"
    command = [sys.executable, "-m", "feedback", "export", "--store", url, "--round", "r1"]
    subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True)
    assert {one.judgment_id for one in read_judgments(out)} == {
        one.judgment_id for one in judgments
    }


@pytest.mark.parametrize("table", ["labels", "events"])
def test_labels_and_events_can_only_be_added(desk: Desk, table: str) -> None:
    for change in (f"DELETE FROM {table}", f"UPDATE {table} SET annotator_id = 'x'"):
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"):
            desk.sql(change)


def test_people_at_once_lose_and_double_nothing(desk: Desk) -> None:
    names = [f"p{number}" for number in range(6)]
    desk.hire(*names)
    desk.publish(some_pairs(30, "r2", start=100), overlap=2)

    def work(name: str) -> None:
        while desk.answer(name, "a") is not None:
            pass

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = desk.sql(
        "SELECT pair_id, count(*), count(DISTINCT annotator_id) FROM assignments "
        "WHERE round = 'r2' AND state = 'done' GROUP BY pair_id"
    )
    assert {row[1:] for row in done} == {(2, 2)}
    assert len(done) == 30
    with desk.database.reading() as connection:
        assert {one.round: one.complete for one in rounds.progress(connection)}["r2"]


def test_a_second_process_opens_the_same_tables(desk: Desk, url: str) -> None:
    second = Desk(url)
    with second.database.writing() as connection:
        token = accounts.new_token(connection, "dan")
    with desk.database.reading() as connection:
        person = accounts.by_token(connection, token)
    assert person is not None
    assert person.annotator_id == "dan"
    second.database.close()
