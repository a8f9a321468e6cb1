"""Imports judgments made elsewhere into the store."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from feedback.judgments import Refusal, consistent
from feedback.store import schema
from feedback.store.accounts import known_as
from feedback.store.database import now_ms
from feedback.store.events import record
from feedback.store.names import check_name
from feedback.store.rounds import round_pair_ids, settle
from feedback.store.standing import chunks, pairs_of
from preferences.records import Judgment, JudgmentError, oriented

_labels, _table, _people = schema.labels, schema.assignments, schema.annotators
_KINDS = select(_people.c.annotator_id, _people.c.kind)
_GIVEN = (
    select(
        *(_table.c.assignment_id, _table.c.annotator_id, _table.c.pair_id, _table.c.state),
        *(_table.c.revision, _labels.c.choice, _labels.c.strength),
    )
    .outerjoin(
        _labels,
        (_labels.c.assignment_id == _table.c.assignment_id)
        & (_labels.c.revision == _table.c.revision),
    )
    .where(_table.c.purpose == "label", _table.c.pair_id.in_(bindparam("pairs", expanding=True)))
)
_AGAIN = (
    update(_table)
    .where(_table.c.assignment_id == bindparam("assignment"))
    .values(
        {each: bindparam(each) for each in ("round", "swap", "state", "revision")}
        | {each: bindparam(each) for each in ("lease_until_ms", "served_ms")}
    )
)

_AT_A_TIME = 10_000
"""Judgments that are written together: what they need in memory is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the judgments of a file."""

    taken: int
    known: int
    """Already in the store."""
    refused: list[Refusal]


def take(connection: Connection, judgments: Sequence[Judgment], round_key: str) -> Imported:
    """Writes judgments for the round; refuses those of pairs outside it, and contradictions.

    Raises:
        ValueError: nobody has published the round.
    """
    held = pairs_of(connection, round_pair_ids(connection, round_key), round_key)
    if not held:
        raise ValueError(f"round {round_key} has not been published")
    pairs = {pair.pair_id: pair for pair in held}
    standing, refused = consistent(_as_known(connection, judgments), pairs)
    rows = _Rows(connection, [one.pair_id for one in standing if one.pair_id in pairs])
    taken: list[str] = []
    known = 0
    for judgment in standing:
        pair = pairs.get(judgment.pair_id)
        try:
            if pair is None:
                raise JudgmentError(f"round {round_key} does not contain the pair")
            if rows.take(oriented(judgment, pair)):
                taken.append(judgment.pair_id)
            else:
                known += 1
        except JudgmentError as error:
            refused.append(Refusal(judgment_id=judgment.judgment_id, reason=str(error)))
        if len(taken) % _AT_A_TIME == 0:
            rows.write(connection)
    rows.write(connection)
    settle(connection, sorted(set(taken)))
    if taken:
        record(connection, "import", round_key=round_key, taken=len(taken), refused=len(refused))
    return Imported(taken=len(taken), known=known, refused=refused)


def _as_known(connection: Connection, judgments: Sequence[Judgment]) -> list[Judgment]:
    """The judgments with the names that the store has for their annotators."""
    given = {judgment.annotator_id for judgment in judgments}
    names = {name: known_as(connection, name) for name in given}
    return [replace(one, annotator_id=names[one.annotator_id]) for one in judgments]


class _Rows:
    """What the import adds to the tables, and what they have of these pairs already.

    A file has hundreds of thousands of judgments, and nobody's answer is saved meanwhile: so rows
    are read and written many at a time.
    """

    def __init__(self, connection: Connection, pair_ids: Sequence[str]) -> None:
        """Reads who is known, and what each has been given of these pairs."""
        self._kinds: dict[str, str] = {
            row.annotator_id: row.kind for row in connection.execute(_KINDS)
        }
        self._said: dict[tuple[str, str], tuple[str, int | None]] = {}
        self._unanswered: dict[tuple[str, str], Row[Any]] = {}
        for chunk in chunks(sorted(set(pair_ids))):
            for row in connection.execute(_GIVEN, {"pairs": list(chunk)}):
                key = (row.pair_id, row.annotator_id)
                if row.state == "done":
                    self._said[key] = (row.choice, row.strength)
                else:
                    self._unanswered[key] = row
        self._people: list[dict[str, Any]] = []
        self._assignments: list[dict[str, Any]] = []
        self._closed: list[dict[str, Any]] = []
        self._labels: list[dict[str, Any]] = []

    def take(self, judgment: Judgment) -> bool:
        """Adds what one judgment needs; False if it is already stored.

        Raises:
            JudgmentError: its annotator cannot be named so, is of another kind, or has judged the
                pair differently.
        """
        self._hire(judgment)
        key, answer = (
            (judgment.pair_id, judgment.annotator_id),
            (judgment.choice, judgment.strength),
        )
        if (held := self._said.get(key)) is not None:
            if held == answer:
                return False
            raise JudgmentError(f"{judgment.annotator_id} has judged this pair differently")
        self._said[key] = answer
        at = _milliseconds(judgment)
        assignment_id, revision = self._close(judgment, self._unanswered.get(key), at)
        label = {
            "assignment_id": assignment_id,
            "annotator_id": judgment.annotator_id,
            "revision": revision,
            "choice": judgment.choice,
            "strength": judgment.strength,
            "reason": judgment.reason,
            "visible_ms": judgment.latency_ms,
            "submission_key": f"import-{assignment_id}-{revision}",
            "guideline_hash": judgment.annotator_version[:16],
            "created_ms": at,
        }
        self._labels.append(label)
        return True

    def write(self, connection: Connection) -> None:
        """Writes all of it, and forgets it."""
        for statement, rows in (
            (insert(_people), self._people),
            (insert(_table), self._assignments),
            (_AGAIN, self._closed),
            (insert(_labels), self._labels),
        ):
            if rows:
                connection.execute(statement, rows)
                rows.clear()

    def _close(self, judgment: Judgment, row: Row[Any] | None, at: int) -> tuple[str, int]:
        """A finished assignment for the judgment, and the revision of its label.

        The pair may be, or may have been, on the annotator's screen: the table then has a `row`.
        """
        values: dict[str, Any] = {"round": judgment.round}
        values |= {"swap": schema.SWAPS.index(judgment.shown_order), "state": "done"}
        values |= {"lease_until_ms": at, "served_ms": at}
        if row is not None:
            revision = row.revision + 1
            self._closed.append({"assignment": row.assignment_id, "revision": revision} | values)
            return row.assignment_id, revision
        assignment_id = secrets.token_hex(16)
        key = {"assignment_id": assignment_id, "annotator_id": judgment.annotator_id}
        key |= {"pair_id": judgment.pair_id, "purpose": "label"}
        self._assignments.append(key | values | {"revision": 1})
        return assignment_id, 1

    def _hire(self, judgment: Judgment) -> None:
        """Adds the annotator if needed, without a way to sign in."""
        name = judgment.annotator_id
        kind = self._kinds.get(name)
        if kind is None:
            try:
                check_name(name)
            except ValueError as error:
                raise JudgmentError(str(error)) from error
            nobody_knows = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
            row: dict[str, Any] = {"annotator_id": name, "role": "source", "kind": judgment.kind}
            row |= {"token_hash": nobody_knows, "created_ms": now_ms(), "judged_from_label": 0}
            self._people.append(row)
            self._kinds[name] = judgment.kind
        elif kind != judgment.kind:
            raise JudgmentError(f"{name} is known as {kind}, not {judgment.kind}")


def _milliseconds(judgment: Judgment) -> int:
    if judgment.created_at is None:
        return now_ms()
    at = datetime.fromisoformat(judgment.created_at)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    # Leases go by the newest time in the store: one in the future would end all of them.
    return min(now_ms(), round(1000 * at.timestamp()))
