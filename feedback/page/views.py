"""What the browser receives."""

from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from feedback.page.rendering import plain_prompt, plain_text, prompt_html, text_html
from feedback.store import schema
from feedback.store.assignments import Task

_table, _rows = schema.assignments, schema.round_pairs
_mine = _table.c.annotator_id == bindparam("mine")

# Built once, as in `feedback.store.assignments`.
_DONE = (
    select(_table.c.round, func.count())
    .where(_mine, _table.c.state == "done")
    .group_by(_table.c.round)
)
_BY_NEED = (
    select(_rows.c.needed == 0, func.count())
    .where(_rows.c.round == bindparam("round"), _rows.c.active == 1)
    .group_by(_rows.c.needed == 0)
)
_SETTLED_WITH_ME = (
    select(func.count())
    .select_from(_table)
    .join(_rows, _rows.c.pair_id == _table.c.pair_id)
    .where(_mine, _table.c.purpose == "label", _table.c.revision > 0)
    .where(_rows.c.round == bindparam("round"), _rows.c.active == 1, _rows.c.needed == 0)
)


def task_view(task: Task) -> dict[str, Any]:
    """A pair as the page shows it: only sides, nothing that reveals the authors."""
    left, right = task.pair.response_a, task.pair.response_b
    left_finished, right_finished = task.pair.finished_a, task.pair.finished_b
    if task.swap:
        left, right = right, left
        left_finished, right_finished = right_finished, left_finished
    prompt = task.pair.prompt
    return {
        "assignment_id": task.assignment_id,
        "prompt": prompt_html(prompt),
        "left": text_html(left),
        "right": text_html(right),
        "prompt_raw": plain_prompt(prompt),
        "left_raw": plain_text(left),
        "right_raw": plain_text(right),
        "left_cut": not left_finished,
        "right_cut": not right_finished,
    }


def standing_of(connection: Connection, annotator_id: str, round_key: str | None) -> dict[str, Any]:
    """Progress of this person and of the given round, by default the newest one.

    Nothing here tells known items and repeats from pairs: each answer of this person raises `mine`
    and `done` by one and each undo lowers them by one, whatever it was an answer to. So `done` is
    not the number of settled pairs but an estimate: pairs that others have settled without this
    person, and this person's answers, checks included.
    """
    if round_key is None:
        rounds = schema.rounds
        newest = select(rounds.c.round).order_by(rounds.c.published_ms.desc(), rounds.c.round)
        round_key = connection.execute(newest.limit(1)).scalar()
    mine = {key: count for key, count in connection.execute(_DONE, {"mine": annotator_id})}
    this = {"round": round_key, "mine": annotator_id}
    by_need = {bool(settled): count for settled, count in connection.execute(_BY_NEED, this)}
    others = by_need.get(True, 0) - int(connection.execute(_SETTLED_WITH_ME, this).scalar_one())
    pairs = sum(by_need.values())
    return {
        "mine": sum(mine.values()),
        "round": round_key,
        "done": min(pairs, others + mine.get(round_key or "", 0)),
        "pairs": pairs,
    }
