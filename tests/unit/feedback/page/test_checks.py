"""What the page says while somebody works must not tell known items and repeats from pairs."""

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from feedback.page.server import ServerParams, create_app
from feedback.quality.annotators import QualityParams, judge_annotators
from feedback.quality.answers import gold_shares, load_answers
from feedback.store import accounts, rounds
from feedback.store.assignments import ServeParams

MANY_CHECKS = ServeParams(gold_rate=0.25, repeat_rate=0.25, repeat_gap=3)

NO_PAUSES = QualityParams(pause_below=0)


@pytest.fixture
def client(desk: Any, make_pairs: Any) -> Iterator[TestClient]:
    desk.publish(make_pairs(80))
    gold = make_pairs(15, key="gold", start=500)
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    app = create_app(desk.database, ServerParams(), serve=MANY_CHECKS, quality=NO_PAUSES)
    with TestClient(app, base_url="http://127.0.0.1:8765") as opened:
        yield opened


@pytest.fixture
def worker(client: TestClient, desk: Any) -> Callable[[str], Any]:
    """A person's calls by name: `call(path, body)`, signed in with a token."""

    def hired(name: str) -> Any:
        with desk.database.writing() as connection:
            token = accounts.new_token(connection, name)
        headers = {"Authorization": f"Bearer {token}"}

        def call(path: str, **body: Any) -> dict[str, Any]:
            return client.post(path, headers=headers, json=body).raise_for_status().json()

        return call

    return hired


def answer(call: Any, view: dict[str, Any], choice: str = "tie", attempt: int = 0) -> Any:
    this = view["task"]["assignment_id"]
    key = f"{this}-{attempt:06d}"
    return call("/api/judgments", assignment_id=this, choice=choice, key=key)


def purpose_of(desk: Any, view: dict[str, Any]) -> str:
    this = view["task"]["assignment_id"]
    ((purpose,),) = desk.sql(f"SELECT purpose FROM assignments WHERE assignment_id = '{this}'")
    return str(purpose)


def numbers(view: dict[str, Any]) -> dict[str, Any]:
    """All that the page shows besides the texts of the pair."""
    return {name: value for name, value in view.items() if name not in ("task", "saved", "fresh")}


def change(before: dict[str, Any], after: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value - before[name] if isinstance(value, int) else value)
        for name, value in sorted(numbers(after).items())
        if name in before
    )


def test_progress_rises_alike_for_pairs_known_items_and_repeats(worker: Any, desk: Any) -> None:
    ana = worker("ana")
    view = ana("/api/task")
    rises: dict[str, set[Any]] = collections.defaultdict(set)
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(60):
        purpose = purpose_of(desk, view)
        following = answer(ana, view)
        rises[purpose].add(change(view, following))
        counts[purpose] += 1
        view = following
    assert counts["gold"] > 5
    assert counts["repeat"] > 5
    assert len(rises["label"]) == 1
    assert rises["gold"] == rises["repeat"] == rises["label"]
    assert dict(*rises["label"])["done"] == 1


def test_progress_falls_alike_when_pairs_known_items_and_repeats_are_undone(
    worker: Any, desk: Any
) -> None:
    ana = worker("ana")
    view = ana("/api/task")
    falls: dict[str, set[Any]] = collections.defaultdict(set)
    for number in range(60):
        purpose = purpose_of(desk, view)
        following = answer(ana, view)
        undone = ana("/api/undo", key=f"undo-{number:06d}")
        falls[purpose].add(change(following, undone))
        view = answer(ana, undone, attempt=1)
    assert set(falls) == {"label", "gold", "repeat"}
    assert len(set.union(*falls.values())) == 1


@pytest.mark.long
def test_progress_betrays_no_check_where_others_answer_too(
    worker: Any, desk: Any, make_pairs: Any
) -> None:
    desk.publish(make_pairs(40), overlap=2)
    names = ("ana", "ben", "cleo")
    calls = {name: worker(name) for name in names}
    views = {name: calls[name]("/api/task") for name in names}
    seen: dict[str, set[Any]] = collections.defaultdict(set)
    for number in range(75):
        name = names[number % 3]
        call = calls[name]
        view = call("/api/task")
        if view["state"] != "pair" or view["done"] >= view["pairs"] - 1:
            continue
        purpose = purpose_of(desk, view)
        # They disagree often, so there are third votes, and settled pairs whose vote is undone.
        choice = ("left", "right", "tie")[number % 3]
        following = answer(call, view, choice)
        undone = call("/api/undo", key=f"undo-{number:06d}")
        seen[purpose].add((change(view, following), change(following, undone)))
        views[name] = answer(call, undone, choice, attempt=1)
    assert set(seen) == {"label", "gold", "repeat"}
    # Seen from one person, only the state differs: at the end nothing may be left for them.
    moves = {
        tuple(dict(part).get(field) for part in both for field in ("mine", "done", "pairs"))
        for both in set.union(*seen.values())
    }
    assert moves == {(1, 1, 0, -1, -1, 0)}


def test_the_first_answer_to_a_check_counts_whatever_is_undone(worker: Any, desk: Any) -> None:
    ana = worker("ana")
    view = ana("/api/task")
    wrong: collections.Counter[str] = collections.Counter()
    for number in range(60):
        purpose = purpose_of(desk, view)
        following = answer(ana, view, "tie")  # never right for a known item
        if purpose != "label":
            wrong[purpose] += 1
            undone = ana("/api/undo", key=f"undo-{number:06d}")
            assert undone["task"] == view["task"]
            ((swap,),) = desk.sql(
                "SELECT swap FROM assignments WHERE assignment_id = "
                f"'{undone['task']['assignment_id']}'"
            )
            following = answer(ana, undone, "right" if swap else "left", attempt=1)
        view = following
    with desk.database.reading() as connection:
        share = gold_shares(connection)["ana"]
        (row,) = judge_annotators(load_answers(connection), QualityParams())
    assert (share.hits, share.n) == (0, wrong["gold"])
    assert row.gold == share
    # The second answers differ from the pairs' answers, which were ties; the first ones do not.
    assert (row.repeats.hits, row.repeats.n) == (wrong["repeat"], wrong["repeat"])


def test_a_check_that_is_undone_and_left_counts_as_answered(worker: Any, desk: Any) -> None:
    ana = worker("ana")
    view = ana("/api/task")
    given = 0
    while purpose_of(desk, view) != "gold" or given < 2:
        view = answer(ana, view)
        given += 1
    answer(ana, view)
    # Undo the known item, then the answer before it: the item is open no longer, and is gone.
    ana("/api/undo", key="undo-0001")
    ana("/api/undo", key="undo-0002")
    golds = desk.sql("SELECT count(*) FROM assignments WHERE purpose = 'gold' AND revision > 0")
    with desk.database.reading() as connection:
        assert gold_shares(connection)["ana"].n == golds[0][0]
