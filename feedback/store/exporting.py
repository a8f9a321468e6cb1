"""Exports a round in one of four forms, and logs who did.

The text of a large round takes a while: it is made while reading, so that answers are saved.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from feedback.formats.exchange import to_csv, to_trl
from feedback.formats.label_studio import to_tasks
from feedback.judgments import Pair, to_lines
from feedback.store.events import record
from feedback.store.rounds import round_pair_ids
from feedback.store.standing import judgments_of, pairs_of
from preferences.records import Judgment
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS, load_withdrawals

ENDINGS = {"judgments": "jsonl", "trl": "jsonl", "label-studio": "json", "csv": "csv"}
"""The forms, and the ending of a file in each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A round's standing judgments as a text."""

    round_key: str
    form: str
    text: str
    judgments: int
    pairs: int


def export(connection: Connection, round_key: str, form: str) -> Export:
    """The judgments of a round, without what was withdrawn.

    An old backup of the store may hold again what was withdrawn since.

    Raises:
        ValueError: the round has not been published, or the file of withdrawals is damaged.
    """
    pairs = pairs_of(connection, round_pair_ids(connection, round_key), round_key)
    if not pairs:
        raise ValueError(f"round {round_key} has not been published")
    texts = load_withdrawals(Path(WITHDRAWN_TEXTS))
    pairs = [pair for pair in pairs if texts.kept([asdict(pair)])]
    people = load_withdrawals(Path(WITHDRAWN_JUDGMENTS))
    judgments = people.kept_judgments(judgments_of(connection, pairs))
    text = _formatted(form, pairs, judgments)
    return Export(
        round_key=round_key, form=form, text=text, judgments=len(judgments), pairs=len(pairs)
    )


def log_export(connection: Connection, done: Export, **who: Any) -> None:
    """Notes in the log that somebody takes it out: before they have it."""
    n = done.judgments
    record(connection, "export", round_key=done.round_key, form=done.form, n=n, **who)


def _formatted(form: str, pairs: Sequence[Pair], judgments: Sequence[Judgment]) -> str:
    by_id = {pair.pair_id: pair for pair in pairs}
    if form == "trl":
        return to_lines(to_trl(judgments, by_id))
    if form == "csv":
        return to_csv(judgments, by_id)
    if form == "label-studio":
        return json.dumps(to_tasks(pairs, judgments), ensure_ascii=False, indent=1) + "\n"
    return to_lines([judgment.to_row() for judgment in judgments])
