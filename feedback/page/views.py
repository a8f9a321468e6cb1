"""What the browser receives."""

from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from feedback.page.rendering import prompt_html, text_html, visible
from feedback.store import schema
from feedback.store.assignments import Task

# Built once, as in `feedback.store.assignments`.
_DONE = select(func.count()).where(
    schema.assignments.c.annotator_id == bindparam("mine"), schema.assignments.c.state == "done"
)
_BY_NEED = (
    select(schema.round_pairs.c.needed, func.count())
    .where(schema.round_pairs.c.round == bindparam("round"), schema.round_pairs.c.active == 1)
    .group_by(schema.round_pairs.c.needed)
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
        "prompt_raw": visible(prompt) if isinstance(prompt, str) else None,
        "left_raw": visible(left),
        "right_raw": visible(right),
        "left_cut": not left_finished,
        "right_cut": not right_finished,
    }


def standing_of(connection: Connection, annotator_id: str, round_key: str | None) -> dict[str, Any]:
    """Progress of this person and of the given round, by default the newest one."""
    if round_key is None:
        rounds = schema.rounds
        newest = select(rounds.c.round).order_by(rounds.c.published_ms.desc(), rounds.c.round)
        round_key = connection.execute(newest.limit(1)).scalar()
    counts = connection.execute(_BY_NEED, {"round": round_key})
    by_need = {needed: count for needed, count in counts}
    return {
        "mine": int(connection.execute(_DONE, {"mine": annotator_id}).scalar_one()),
        "round": round_key,
        "settled": by_need.get(0, 0),
        "pairs": sum(by_need.values()),
    }
