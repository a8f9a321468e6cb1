"""What the browser gets to know."""

from typing import Any

from sqlalchemy import Connection, func, select

from feedback import schema
from feedback.assignments import Task
from feedback.rendering import prompt_html, text_html, visible


def task_view(task: Task) -> dict[str, Any]:
    """A pair as the page shows it: sides only, nothing that tells one writer from the other."""
    left, right = task.pair.response_a, task.pair.response_b
    if task.swap:
        left, right = right, left
    prompt = task.pair.prompt
    return {
        "assignment_id": task.assignment_id,
        "prompt": prompt_html(prompt),
        "left": text_html(left),
        "right": text_html(right),
        "prompt_raw": visible(prompt) if isinstance(prompt, str) else None,
        "left_raw": visible(left),
        "right_raw": visible(right),
    }


def standing_of(connection: Connection, annotator_id: str, round_key: str | None) -> dict[str, Any]:
    """How far this person and the round in hand are; without one, the newest round."""
    table, rows, rounds = schema.assignments, schema.round_pairs, schema.rounds
    mine = select(func.count()).where(table.c.annotator_id == annotator_id, table.c.state == "done")
    if round_key is None:
        newest = select(rounds.c.round).order_by(rounds.c.published_ms.desc(), rounds.c.round)
        round_key = connection.execute(newest.limit(1)).scalar()
    of_round = (rows.c.round == round_key, rows.c.active == 1)
    counts = select(rows.c.needed, func.count()).where(*of_round).group_by(rows.c.needed)
    by_need = {needed: count for needed, count in connection.execute(counts)}
    return {
        "mine": int(connection.execute(mine).scalar_one()),
        "round": round_key,
        "settled": by_need.get(0, 0),
        "pairs": sum(by_need.values()),
    }
