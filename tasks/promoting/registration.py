"""Registers every policy and reward model of `dvc.lock` with MLflow, each with its two cards.

Whoever ran the pipeline calls this, for only then are the DVC hashes known. What was registered is
noted beside the spool, with a digest of the results that the cards show: they are written anew once
there are others, and a call with nothing to do reads a few small files and imports no MLflow.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.params.loading import ParamsError, read_yaml
from tasks.promoting.cards import (
    DATA_CARD,
    MODEL_CARD,
    Trained,
    data_card,
    guards_page,
    model_card,
    summary,
)
from tasks.promoting.sources import Tally
from tasks.reporting.data import read_verdicts
from tasks.reporting.summary import read_metrics
from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.sent import load_sent
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.tracking.spool import EXECUTIONS_FOLDER
from tasks.tracking.spools import run_behind
from tasks.workspace.dvc_lockfile import LockedStage, has_read, read_entries, read_lock
from tasks.workspace.files import home, read_json, write_json

logger = logging.getLogger(__name__)

NOTE = "registered.json"
EDITION = 4
"""Raise it when the cards say something else of the same results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A model whose version or cards are not in MLflow yet."""

    stage: str
    path: str
    digest: str
    folder: Path
    """Its spool."""
    logged: str
    """Id of the logged model."""
    store: str
    """Digest of the tracking store."""
    state: str
    """Digest of the results that the cards show."""


def tag_and_register(root: Path) -> int:
    """Tag runs with their outputs' hashes, then register models; how many runs were tagged."""
    tagged = tag_outputs(root)
    register(root)
    return tagged


def register(root: Path) -> int:
    """Register what is not, and write the cards anew whose results have changed; how many.

    Goes on after a model that MLflow refuses, and stops if it does not respond; the next call tries
    again.
    """
    todo = list(unregistered(root))
    if not todo:
        return 0
    quiet_mlflow()
    # Imported here: takes 1.5 s, which a call with nothing to register should not cost.
    from tasks.tracking.send import TrackingError  # noqa: PLC0415
    from tasks.tracking.send_version import send_version  # noqa: PLC0415

    tally, registered = Tally(root), 0
    for one in todo:
        model = _trained(root, one)
        cards = {
            MODEL_CARD: model_card(model),
            DATA_CARD: data_card(
                model, tally.of(one.path, one.digest), read_verdicts(root, _rounds(root, one))
            ),
        }
        try:
            send_version(
                tracking_uri(root),
                one.logged,
                one.path,
                one.digest,
                description=summary(model),
                cards=cards,
            )
        except TrackingError as error:
            logger.warning("%s: not registered in MLflow yet. %s", one.path, error)
            if error.refused:
                continue
            break
        _note(one)
        registered += 1
    return registered


def unregistered(root: Path) -> Iterator[Waiting]:
    """The models in MLflow that have no version there, or cards of earlier results."""
    lock = read_lock(root)
    for stage, locked in lock.items():
        for path, digest in locked.outs.items():
            if not path.startswith("models/") or path == "models/base":
                continue
            folder = run_behind(root, stage, locked)
            if folder is None:
                continue
            sent = load_sent(folder, tracking_uri(root))
            if path not in sent.models or sent.outs.get(path) != digest:
                continue
            found = Waiting(
                stage=stage,
                path=path,
                digest=digest,
                folder=folder,
                logged=sent.models[path],
                store=sent.uri,
                state=_state(lock, path, digest),
            )
            if _noted(folder, sent.uri).get(path) != found.state:
                yield found


def _state(lock: dict[str, LockedStage], path: str, digest: str) -> str:
    """A digest of the model and of the results of its round."""
    name = Path(path).parts[2] if path.startswith("models/rounds/") else "sft"
    results = sorted(
        (out, found)
        for locked in lock.values()
        for out, found in locked.outs.items()
        if out.startswith("results/")
        and (Path(out).name == name or out in ("results/baseline", "results/test"))
    )
    text = json.dumps([EDITION, path, digest, results])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _trained(root: Path, one: Waiting) -> Trained:
    entry: dict[str, Any] = read_entries(root)[one.stage]
    key = one.stage.partition("@")[2]
    start = json.loads((one.folder / "start.json").read_text(encoding="utf-8"))
    lock = read_lock(root)
    if one.path.endswith("/reward"):
        heldout = read_metrics(root / "results" / "reward" / key)
    else:
        heldout = _measured(root, lock, f"evaluate@{key}" if key else "baseline", one)
    tested = one.path.endswith("/policy") and _params(root).get("final") == key
    return Trained(
        path=one.path,
        digest=one.digest,
        stage=one.stage,
        commit=_commit(root, start),
        deps=lock[one.stage].deps,
        params=(entry.get("params") or {}).get("params.yaml") or {},
        heldout=heldout,
        test=_measured(root, lock, "test", one) if tested else None,
        guards=guards_page(root, key) if key else "",
    )


def _commit(root: Path, start: Mapping[str, Any]) -> str:
    """What was checked out when the stage ran; its execution knows whether files were changed."""
    place = home(root) / EXECUTIONS_FOLDER / start["execution"] / "start.json"
    tags = (read_json(place) or {}).get("tags", {})
    changed = " with uncommitted changes" if tags.get("git.dirty") == "true" else ""
    return f"{start['tags'].get('git.commit', 'unknown')}{changed}"


def _measured(
    root: Path, lock: Mapping[str, LockedStage], stage: str, one: Waiting
) -> dict[str, Any] | None:
    """What a stage has measured of this very model: a round's may have been trained anew since."""
    if not has_read(lock, stage, one.path, one.digest):
        return None
    return read_metrics(root / "results" / stage.replace("@", "/"))


def _rounds(root: Path, one: Waiting) -> list[str]:
    """The rounds up to the model's, none for SFT."""
    keys = [str(key) for key in _params(root).get("rounds") or {}]
    own = one.stage.partition("@")[2]
    return keys[: keys.index(own) + 1] if own in keys else []


def _params(root: Path) -> dict[str, Any]:
    try:
        return read_yaml(root / "params.yaml")
    except ParamsError:
        return {}


def _noted(folder: Path, store: str) -> dict[str, str]:
    note = read_json(folder / NOTE) or {}
    states: dict[str, str] = note.get("models", {}) if note.get("store") == store else {}
    return states


def _note(one: Waiting) -> None:
    models = {**_noted(one.folder, one.store), one.path: one.state}
    write_json(one.folder / NOTE, {"store": one.store, "models": models})
