"""Gold items: pairs whose right choice is known, to check people with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select, update

from feedback.judgments import Pair, json_rows
from feedback.store import schema
from feedback.store.rounds import add_pairs
from feedback.store.standing import chunks, pairs_of
from preferences.records import JudgmentError, pair_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGold:
    """What publishing gold items changed."""

    added: int
    changed: int
    """Known items whose right choice is another one now."""
    kept: int


def read_gold(path: Path) -> list[tuple[Pair, str]]:
    """The pairs of a JSON Lines file, each with its right choice, `a` or `b`.

    Raises:
        JudgmentError: a row is no pair, or has no right choice.
    """
    gold = []
    for where, row in json_rows(path):
        if row.get("gold") not in ("a", "b"):
            raise JudgmentError(f"{where}: gold is {row.get('gold')!r}, expected a or b")
        content = {name: row.get(name) for name in ("prompt", "response_a", "response_b")}
        prompt, *responses = content.values()
        key = pair_id(prompt if isinstance(prompt, list) else str(prompt), *map(str, responses))
        content |= {name: row[name] for name in ("finished_a", "finished_b") if name in row}
        pair = Pair.from_json({"pair_id": key, "round": "gold", **content}, where=where)
        gold.append((pair, str(row["gold"])))
    return gold


def publish_gold(
    connection: Connection, path: Path, items: Sequence[tuple[Pair, str]]
) -> PublishedGold:
    """Stores the pairs of a file with their right choices; of known ones, the choice.

    Raises:
        JudgmentError: a pair belongs to a round, or has two right choices.
    """
    _refuse_if_in_round(connection, path, [pair for pair, _ in items])
    ids = list(dict.fromkeys(pair.pair_id for pair, _ in items))
    before = _gold_of(connection, ids)
    add_pairs(connection, [pair for pair, _ in items])
    stored = {pair.pair_id: pair for pair in pairs_of(connection, ids, "gold")}
    wanted: dict[str, str] = {}
    for pair, choice in items:
        if pair.response_a != stored[pair.pair_id].response_a:
            choice = "b" if choice == "a" else "a"
        if wanted.setdefault(pair.pair_id, choice) != choice:
            raise JudgmentError(f"{path}: pair {pair.pair_id} has two gold choices, expected one")
    table = schema.pairs
    for key in ids:
        if before.get(key) != wanted[key]:
            this = update(table).where(table.c.pair_id == key)
            connection.execute(this.values(gold=wanted[key]))
    added = sum(key not in before for key in ids)
    kept = sum(before.get(key) == wanted[key] for key in ids)
    return PublishedGold(added=added, changed=len(ids) - added - kept, kept=kept)


def _gold_of(connection: Connection, pair_ids: Sequence[str]) -> dict[str, str]:
    """The right choices of those pairs that are gold items."""
    table = schema.pairs
    return {
        row.pair_id: row.gold
        for chunk in chunks(pair_ids)
        for row in connection.execute(
            select(table.c.pair_id, table.c.gold).where(
                table.c.pair_id.in_(chunk), table.c.gold.is_not(None)
            )
        )
    }


def _refuse_if_in_round(connection: Connection, path: Path, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        rows = schema.round_pairs
        query = select(rows.c.round).where(rows.c.pair_id == pair.pair_id)
        key = connection.execute(query).scalar()
        if key is not None:
            raise JudgmentError(f"{path}: pair {pair.pair_id} already belongs to round {key}")
