"""What the browser is told of a pair and of a round, without a browser."""

from dataclasses import replace
from typing import Any

import pytest

from feedback.page.views import standing_of, task_view
from feedback.store import rounds
from feedback.store.assignments import ServeParams, Task


@pytest.mark.parametrize("swap", [False, True])
def test_each_side_has_its_own_text_and_says_itself_whether_it_was_cut(
    make_pairs: Any, swap: bool
) -> None:
    pair = replace(make_pairs(1)[0], response_a="# one", response_b="two", finished_b=False)
    task = Task(
        assignment_id="id", annotator_id="ana", purpose="label", swap=swap, round="r1", pair=pair,
        served_ms=0, state="open", revision=0,
    )  # fmt: skip
    view = task_view(task)
    of_a, of_b = ("right", "left") if swap else ("left", "right")
    assert [view[f"{of_a}{part}"] for part in ("", "_raw", "_cut")] == [
        "<h1>one</h1>\n", "# one", False,
    ]  # fmt: skip
    assert [view[f"{of_b}{part}"] for part in ("", "_raw", "_cut")] == ["<p>two</p>\n", "two", True]


def test_where_nothing_is_left_the_newest_round_is_told_of(desk: Any, make_pairs: Any) -> None:
    desk.hire("ana")
    for number, key in enumerate(("r9", "r10")):  # In this order, and not by name.
        desk.publish(make_pairs(number + 1, key=key, start=10 * number))
        desk.sql(f"UPDATE rounds SET published_ms = {1000 * number} WHERE round = '{key}'")
    with desk.database.reading() as connection:
        standing = standing_of(connection, "ana", None)
    assert (standing["round"], standing["pairs"]) == ("r10", 2)


def test_no_more_pairs_are_called_done_than_there_are(desk: Any, make_pairs: Any) -> None:
    """Known items count as pairs do, so that nobody can tell them apart."""
    desk.hire("ana")
    desk.publish(make_pairs(2))
    gold = make_pairs(6, key="gold", start=500)
    with desk.database.writing() as connection:
        rounds.add_pairs(connection, gold, {pair.pair_id: "a" for pair in gold})
    for _ in range(6):
        desk.answer("ana", "left", ServeParams(gold_rate=0.9, repeat_rate=0))
    with desk.database.reading() as connection:
        standing = standing_of(connection, "ana", "r1")
    assert standing["mine"] > 2
    assert (standing["done"], standing["pairs"]) == (2, 2)
