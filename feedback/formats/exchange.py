"""Judgments in third-party formats: TRL preference rows and a table for spreadsheets."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from feedback.judgments import Pair
from preferences.records import (
    TIE,
    Choice,
    Judgment,
    JudgmentError,
    composed,
    pair_id,
    text_hash,
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets treat a cell that begins like this as a formula."""
_CSV_COLUMNS = (
    *("pair_id", "annotator", "choice", "strength", "reason", "prompt", "a", "b"),
    *("a_finished", "b_finished"),
)


def to_trl(judgments: Sequence[Judgment], pairs: Mapping[str, Pair]) -> list[dict[str, Any]]:
    """One row of TRL's preference format for each judgment that prefers a response.

    With explicit prompt, as text, or as messages if the prompt is messages. Ties, both bad and
    skips have no chosen response and are left out.
    """
    rows = []
    for judgment in judgments:
        if judgment.choice not in ("a", "b"):
            continue
        pair = pairs[judgment.pair_id]
        chosen, rejected = (pair.response_a, pair.finished_a), (pair.response_b, pair.finished_b)
        if judgment.choice == "b":
            chosen, rejected = rejected, chosen
        rows.append(
            {
                "prompt": pair.prompt,
                "chosen": _completion(pair, chosen[0]),
                "rejected": _completion(pair, rejected[0]),
                "chosen_finished": chosen[1],
                "rejected_finished": rejected[1],
                "pair_id": judgment.pair_id,
                "round": judgment.round,
                "annotator_id": judgment.annotator_id,
                "strength": judgment.strength,
            }
        )
    return rows


def from_trl(
    rows: Sequence[tuple[str, Mapping[str, Any]]], round_key: str, *, source: str
) -> list[Judgment]:
    """Judgments from rows of TRL's preference format; `source` names a row's annotator by default.

    A `label` is the probability that `chosen` is better, as in preference data: 0.5 is a tie.

    Raises:
        JudgmentError: a row lacks prompt, chosen or rejected, or its label is none; gives its
            location.
    """
    return [_from_trl_row(where, row, round_key, source) for where, row in rows]


def _from_trl_row(where: str, row: Mapping[str, Any], round_key: str, source: str) -> Judgment:
    prompt = row.get("prompt")
    if not isinstance(prompt, str | list):
        raise JudgmentError(f"{where}: prompt is {prompt!r}, expected a text or messages")
    chosen, rejected = (_plain(where, row, name) for name in ("chosen", "rejected"))
    pair = Pair(
        pair_id=pair_id(prompt, chosen, rejected),
        round=round_key,
        prompt=prompt,
        response_a=chosen,
        response_b=rejected,
    )
    choice = _choice(where, row.get("label", 1))
    strength, name = row.get("strength"), row.get("annotator_id")
    return Judgment.of(
        pair,
        annotator_id=composed(source if name is None else str(name)),
        kind="import",
        annotator_version="trl",
        choice=choice,
        strength=strength if choice == "a" and strength in (1, 2, 3, 4) else None,
        shown_order=None,
        answer_a=text_hash(chosen),
    )


def _choice(where: str, label: object) -> Choice:
    if isinstance(label, bool) or not isinstance(label, int | float) or not TIE <= label <= 1:
        raise JudgmentError(f"{where}: label is {label!r}, expected 0.5 (a tie) to 1")
    return "tie" if label == TIE else "a"


def _completion(pair: Pair, response: str) -> str | list[dict[str, str]]:
    if isinstance(pair.prompt, str):
        return response
    return [{"role": "assistant", "content": response}]


def _plain(where: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    if not isinstance(value, str):
        raise JudgmentError(f"{where}: {name} is {value!r}, expected a text or one message")
    return value


def to_csv(judgments: Sequence[Judgment], pairs: Mapping[str, Pair]) -> str:
    """A table for viewing, not for import: cells that look like formulas get a leading quote."""
    table = io.StringIO()
    # Only what ends a line is quoted: with a bare "\n" a "\r" in a text would begin another row.
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow([*_CSV_COLUMNS])
    for judgment in judgments:
        pair = pairs[judgment.pair_id]
        cells: list[object] = [judgment.pair_id, judgment.annotator_id, judgment.choice]
        cells += [judgment.strength, judgment.reason]
        cells += [pair.prompt, pair.response_a, pair.response_b]
        cells += ["yes" if finished else "cut" for finished in (pair.finished_a, pair.finished_b)]
        writer.writerow(["" if cell is None else _harmless(str(cell)) for cell in cells])
    return table.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
