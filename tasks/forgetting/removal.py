"""Carries out a plan, in an order that can be repeated if it is interrupted."""

import json
import os
from collections import Counter
from pathlib import Path

from feedback.store.database import Database
from feedback.store.withdrawing import withdraw
from tasks.forgetting.ledger import add, log
from tasks.forgetting.own_rows import replace, without
from tasks.forgetting.places import ENDS
from tasks.forgetting.plan import Plan
from tasks.forgetting.wanted import Wanted
from tasks.tracking.sent import DEFAULT_STORE
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.workspace.files import relative_to
from tasks.workspace.withdrawn import LOG, NOTE

SAID = f"what was said here was withdrawn, see {LOG}"
"""Message of a record of an end that named somebody."""


class MarkError(Exception):
    """MLflow cannot be told which models contain it; the message says why."""


def carry_out(root: Path, plan: Plan) -> list[str]:
    """Mark the models, note the tombstones, remove everything; the versions that were marked.

    First what keeps it away, and the log, by which the gate knows models; then what removes it.
    What an interruption leaves, the same command finds again, and logs again what it removes then.
    What remains of own files is worked out before anything is changed.

    Raises:
        OwnRowsError: an own file is no longer JSON Lines; nothing was changed.
        MarkError: MLflow does not take the marks; nothing was removed.
    """
    remaining = {o.path: without(o.path, plan.wanted) for o in plan.files if o.place == "own"}
    marked = _mark(root, plan)
    for name, tombstones in plan.tombstones.items():
        if tombstones:
            add(root, name, tombstones)
    log(root, _entry(root, plan, marked))
    for url, found in plan.stores:
        database = Database(url)
        try:
            with database.writing() as connection:
                withdraw(connection, found)
            database.compact()
        finally:
            database.close()
    for one in plan.files:
        if one.place == "own":
            replace(one.path, remaining[one.path])
        elif (record := _without_message(one.path, plan.wanted)) is not None:
            replace(one.path, record)
        else:
            # Whoever may write the folder may remove the file, read-only as DVC leaves it or not.
            one.path.unlink(missing_ok=True)
            if one.place != "cache":
                _remove_empty(one.path.parent)
    return marked


def _without_message(path: Path, wanted: Wanted) -> bytes | None:
    """The record of an end with another message, so that its status stays; None for other files.

    None also where more of it has what must go.
    """
    if path.name not in ENDS:
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("message"), str):
        return None
    record["message"] = SAID
    return None if wanted.row(record) or wanted.page(SAID) else json.dumps(record).encode()


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those above it, up to the first that has something in it."""
    for one in (folder, *folder.parents):
        try:
            one.rmdir()
        except OSError:
            return


def _entry(root: Path, plan: Plan, marked: list[str]) -> dict[str, object]:
    """Counts and hashes; nothing that says whom or what it was."""
    rows: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for one in plan.files:
        rows[one.place] += one.rows
        files[one.place] += 1
    store: Counter[str] = Counter()
    for _, found in plan.stores:
        store.update(found.counts)
    return {
        "what": plan.wanted.kind,
        "tombstones": [one.hash for added in plan.tombstones.values() for one in added],
        "files": dict(files),
        "rows": dict(rows),
        "objects": [o.path.parent.name + o.path.name for o in plan.files if o.place == "cache"],
        "outputs": sorted(plan.digests),
        "store": dict(store),
        "models": [model.digest for model in plan.models],
        "versions": marked,
        "stages": {relative_to(one.place, root): list(one.stages) for one in plan.again},
    }


def _mark(root: Path, plan: Plan) -> list[str]:
    own = not os.environ.get("MLFLOW_TRACKING_URI") and not (root / DEFAULT_STORE).exists()
    if own or not plan.models:
        return []
    quiet_mlflow()
    # Imported here: they bring MLflow, which takes seconds that a search can save.
    from tasks.tracking.send import TrackingError, named_errors  # noqa: PLC0415
    from tasks.tracking.store import connect  # noqa: PLC0415
    from tasks.tracking.withdrawn import mark  # noqa: PLC0415

    digests = {model.digest for model in plan.models}
    try:
        with named_errors():
            return mark(connect(tracking_uri(root)), digests, NOTE)
    except TrackingError as error:
        raise MarkError(
            f"MLflow cannot be told which models contain it: {error}; nothing was removed"
        ) from None
