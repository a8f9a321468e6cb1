"""How much of a spool has arrived in MLflow: `sent.json`, read and replaced as a whole."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tasks.workspace.files import read_json, write_json

DEFAULT_STORE = Path(".work") / "mlflow" / "mlflow.db"
"""Below the main checkout."""

Curve = Literal["metrics", "system"]
CURVES: tuple[Curve, ...] = ("metrics", "system")
"""Files of a spool (`metrics.jsonl`), and the fields of `Sent` that say how much has arrived."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """Progress of shipping one spool to one tracking server."""

    uri: str
    """Digest of the tracking URI (which may hold a password); another server starts anew."""
    run: str = ""
    """Id of the MLflow run, empty until it exists."""
    described: bool = False
    """Parameters, tags and data set inputs have arrived."""
    metrics: int = 0
    """Bytes of metrics.jsonl that have arrived."""
    system: int = 0
    """Bytes of system.jsonl that have arrived."""
    status: str = ""
    """Last status reported to MLflow."""
    ended_ms: int = 0
    """`ended_ms` of the finish.json whose metrics and artifacts have arrived; 0 for none."""
    rounds_ms: int = 0
    """`recorded_ms` of the rounds.json that has arrived; 0 for none."""
    models: dict[str, str] = field(default_factory=dict)
    """Path of a model that has arrived -> id of the logged model."""
    models_done: bool = False
    """All models of the finish.json have arrived."""
    outs: dict[str, str] = field(default_factory=dict)
    """Output path -> hash in dvc.lock that the run has been tagged with."""


def load_sent(folder: Path, uri: str) -> Sent:
    """Progress of shipping the spool in `folder` to `uri`; none yet if it went elsewhere before."""
    path, digest = folder / "sent.json", store_digest(folder, uri)
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["uri"] == digest:
            return Sent(**record)
    return Sent(uri=digest)


def save_sent(folder: Path, sent: Sent) -> None:
    """Replace the spool's `sent.json`."""
    write_json(folder / "sent.json", asdict(sent))


def rounds_are_new(folder: Path, sent: Sent) -> bool:
    """Whether an execution has a rounds.json that has not arrived."""
    rounds = read_json(folder / "rounds.json")
    return rounds is not None and rounds["recorded_ms"] != sent.rounds_ms


def end_is_new(folder: Path, sent: Sent) -> bool:
    """Whether an execution has an end.json that has not arrived."""
    end = read_json(folder / "end.json")
    return end is not None and end["ended_ms"] != sent.ended_ms


def store_digest(folder: Path, uri: str) -> str:
    """Twelve hex digits that stand for a tracking URI.

    The default store moves with its checkout, so it has the same digits wherever the checkout that
    `folder` is in may be.
    """
    store = f"/{DEFAULT_STORE.as_posix()}"
    if uri.startswith("sqlite:///") and uri.endswith(store):
        checkout = Path(uri.removeprefix("sqlite:///").removesuffix(store))
        if folder.resolve().is_relative_to(checkout.resolve()):
            uri = "the store of this checkout"
    return hashlib.sha256(uri.encode()).hexdigest()[:12]
