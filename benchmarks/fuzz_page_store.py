"""What must hold in the store after each example of `benchmarks.fuzz_page`."""

import csv
import io
import json
from collections import Counter
from typing import Any

from sqlalchemy import Connection

from feedback.formats.exchange import to_csv, to_trl
from feedback.formats.label_studio import from_tasks, to_tasks
from feedback.judgments import judgment_from_row, to_lines
from feedback.store import rounds
from feedback.store.standing import judgments_of, pairs_of
from feedback.store.submissions import WITHDRAWN
from preferences.records import CHOICES

OVERLAP = 2
"""People per pair."""


class Found(AssertionError):
    """Something that must hold does not."""


def hold(condition: bool, message: str) -> None:
    """Raises `Found` with this message, unless the condition holds."""
    if not condition:
        raise Found(message)


def check_store(connection: Connection, example: int) -> None:
    """The file, and what it holds of the people of this example."""
    query = connection.exec_driver_sql
    hold(query("PRAGMA quick_check").scalar() == "ok", "the file is damaged")
    hold(query("PRAGMA foreign_key_check").first() is None, "a foreign key leads nowhere")
    mine = f"annotator_id LIKE '%-{example}'"
    assignments = list(query(f"SELECT * FROM assignments WHERE {mine}"))
    labels = list(query(f"SELECT * FROM labels WHERE {mine} ORDER BY label_id"))
    events = list(query(f"SELECT kind, annotator_id FROM events WHERE {mine} ORDER BY event_id"))
    for label in labels:
        hold(label.choice in (*CHOICES, WITHDRAWN), f"{label}: choice")
        hold(label.strength in (None, 1, 2, 3, 4), f"{label}: strength")
        hold(label.strength is None or label.choice in ("a", "b"), f"{label}: strength")
        hold("\x00" not in (label.reason or ""), f"{label}: reason")
        hold(label.visible_ms is None or label.visible_ms >= 0, f"{label}: time")
    newest: dict[str, list[Any]] = {}
    for label in labels:
        newest.setdefault(label.assignment_id, []).append(label)
    for one in assignments:
        of = newest.get(one.assignment_id, [])
        hold([label.revision for label in of] == list(range(1, len(of) + 1)), f"{of}: revisions")
        hold(one.revision == len(of), f"{one}: revision, of {of}")
        answered = bool(of) and of[-1].choice != WITHDRAWN
        hold((one.state == "done") == answered, f"{one}: state, of {of}")
    held = Counter(one.annotator_id for one in assignments if one.state == "open")
    hold(max(held.values(), default=0) < 2, f"{held}: two pairs at once")
    _check_needs(connection)
    paused: set[str] = set()
    for kind, name in events:
        hold(
            kind not in ("label", "undo", "serve") or name not in paused, f"{name}: {kind}, paused"
        )
        paused = (
            paused | {name} if kind == "pause" else paused - {name} if kind == "resume" else paused
        )
    written = sum(kind in ("label", "undo") for kind, _ in events)
    hold(written == len(labels), f"{len(labels)} labels, {written} in the log")


def _check_needs(connection: Connection) -> None:
    """How many answers each pair still needs, worked out anew from the labels."""
    query = connection.exec_driver_sql
    standing = query(
        "SELECT a.pair_id, l.choice FROM assignments a JOIN labels l USING (assignment_id) "
        "JOIN round_pairs r ON r.pair_id = a.pair_id AND r.active = 1 "
        "WHERE a.purpose = 'label' AND a.state = 'done' AND l.revision = a.revision"
    )
    choices: dict[str, list[str]] = {}
    for key, choice in standing:
        choices.setdefault(key, []).append(choice)
    for key, needed in query("SELECT pair_id, needed FROM round_pairs WHERE active = 1"):
        given = choices.get(key, [])
        differ = len(given) == OVERLAP and len(set(given)) > 1
        hold(needed == max(0, OVERLAP - len(given)) + differ, f"{key}: {needed}, of {given}")


def check_exports(connection: Connection) -> None:
    """All four forms can be written, and read again."""
    pairs = pairs_of(connection, rounds.round_pair_ids(connection, "r1"), "r1")
    judgments = judgments_of(connection, pairs)
    by_id = {pair.pair_id: pair for pair in pairs}
    read = [judgment_from_row(json.loads(json.dumps(one.to_row()))) for one in judgments]
    hold(read == judgments, "judgments are read as others")
    hold(len(from_tasks(to_tasks(pairs, judgments), "r1")) == len(judgments), "Label Studio")
    preferred = sum(one.choice in ("a", "b") for one in judgments)
    hold(to_lines(to_trl(judgments, by_id)).count("\n") == preferred, "TRL")
    table = list(csv.reader(io.StringIO(to_csv(judgments, by_id))))
    hold({len(row) for row in table} == {len(table[0])}, "cells of the csv")
    hold(len(table) == len(judgments) + 1, "rows of the csv")
