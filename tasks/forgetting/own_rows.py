"""Takes rows out of the user's own files, as far as these are JSON Lines."""

import json
from pathlib import Path

from preferences.records import compact_json
from tasks.forgetting.wanted import Wanted

NOBODY = "withdrawn"


def editable(path: Path) -> bool:
    """Whether rows can be taken out here; other forms and pinned files are for people to edit."""
    return path.suffix == ".jsonl"


def take_out(path: Path, wanted: Wanted) -> None:
    """Drop the rows that have it.

    A judgment becomes a skip by nobody: the file still has an answer for each pair, so the round
    goes on instead of waiting for people.
    """
    lines, skips = [], 0
    for line in path.read_text(encoding="utf-8").split("\n"):
        row = json.loads(line) if line.strip() else {}
        if not row or not wanted.row(row):
            lines.append(line)
        elif "judgment_id" in row:
            skips += 1
            kept = ("judgment_id", "pair_id", "round", "shown_order", "revision")
            nobody = {"annotator_id": f"{NOBODY}-{skips}", "kind": NOBODY, "choice": "skip"}
            lines.append(compact_json({k: row[k] for k in kept if k in row} | nobody))
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("\n".join(lines), encoding="utf-8")
    draft.chmod(path.stat().st_mode & 0o777)
    draft.replace(path)
