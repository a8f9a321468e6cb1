"""People as annotators: pairs go to the labelling page, judgments come from its store."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, select

from feedback.annotators import LabelParams, MissingJudgmentsError
from feedback.judgments import Pair
from feedback.store import schema
from feedback.store.database import Database
from feedback.store.events import record
from feedback.store.rounds import publish
from feedback.store.standing import answers, chunks, judgments_of
from preferences.records import Judgment

VARIANTS = (".work", "variants")
"""Where the folders of variants lie (`make repro VARIANT=name`)."""


class PeopleAnnotator:
    """Asks people, who judge in their own time."""

    def __init__(self, params: LabelParams) -> None:
        """Opens nothing yet.

        The environment variable RLHF_FEEDBACK_STORE overrides `params.store`: the workspaces of the
        flow have their own folders but share one labelling server.
        """
        self._params = params
        self._store = os.environ.get("RLHF_FEEDBACK_STORE") or params.store

    def publish(self, pairs: Sequence[Pair]) -> None:
        """Puts the pairs of a round on the page; publishing them again changes nothing."""
        database = Database(self._store)
        try:
            with database.writing() as connection:
                publish(connection, pairs, overlap=self._params.overlap)
        finally:
            database.close()

    def judge(self, pairs: Sequence[Pair]) -> list[Judgment]:
        """All judgments of the round, once every pair is settled.

        Raises:
            MissingJudgmentsError: not all pairs are settled; says how to open the page.
        """
        self.publish(pairs)
        key, pair_ids = pairs[0].round, [pair.pair_id for pair in pairs]
        database = Database(self._store)
        try:
            with database.reading() as connection:  # The page goes on taking answers.
                missing = _missing(connection, key, pair_ids)
                if missing:
                    given = sum(map(len, answers(connection, pair_ids).values()))
                    note = how_to_open(connection)
                    raise MissingJudgmentsError(
                        key, missing=missing, wanted=given + missing, note=note
                    )
                judgments = judgments_of(connection, pairs)
            with database.writing() as connection:
                record(connection, "export", round_key=key, form="stage", n=len(judgments))
            return judgments
        finally:
            database.close()


def _missing(connection: Connection, key: str, pair_ids: Sequence[str]) -> int:
    """Answers that these pairs still need; another run may have published its own meanwhile."""
    rows = schema.round_pairs
    needed = select(rows.c.needed).where(rows.c.round == key)
    return sum(
        count
        for chunk in chunks(pair_ids)
        for count in connection.execute(needed.where(rows.c.pair_id.in_(chunk))).scalars()
    )


def how_to_open(connection: Connection) -> str:
    """Where people label: the page's last address, and the command that opens it."""
    events = schema.events
    opened = select(events.c.detail).where(events.c.kind == "open")
    detail = connection.execute(opened.order_by(events.c.event_id.desc()).limit(1)).scalar()
    page = json.loads(detail)["page"] if detail else "http://127.0.0.1:8765"
    return f"label at {page} (`{annotate_command()}` opens the page)"


def annotate_command() -> str:
    """What opens the page for the store of this folder, which may be that of a variant."""
    *_, work, variants, name = ("", "", *Path.cwd().parts)
    return f"make annotate VARIANT={name}" if (work, variants) == VARIANTS else "make annotate"
