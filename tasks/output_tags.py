"""Tags MLflow runs and models with the DVC hashes of what they produced.

A stage cannot know them: DVC hashes its outputs after it has ended. So whoever ran the pipeline
adds them from `dvc.lock` (the driver, the flow, `make sync`).
"""

import json
import logging
from pathlib import Path
from typing import Any

from tasks.dvc_lock import LockedStage, read_lock
from tasks.sent import Sent, load_sent, save_sent
from tasks.shipping import quiet_mlflow, spools, tracking_uri
from tasks.tracking import read_finish

logger = logging.getLogger(__name__)


def tag_outputs(root: Path) -> int:
    """Tag the run behind each stage of `dvc.lock` as `dvc.out.<path>`; how many runs were tagged.

    The run behind a stage is the newest that finished on the inputs that `dvc.lock` names: after
    a checkout of an older commit that is an older run, and for outputs pulled from another
    machine there is none here. Does nothing where MLflow does not answer; the next call will.
    """
    todo = []
    for stage, locked in read_lock(root).items():
        folder = run_behind(root, stage, locked)
        if folder is None:
            continue
        sent = load_sent(folder, tracking_uri(root))
        if sent.run and sent.outs != locked.outs:
            todo.append((folder, sent, locked))
    if not todo:
        return 0
    quiet_mlflow()
    # Imported here: nothing to tag, nothing to wait for (1.5 s).
    from tasks.mlflow_send import TrackingError, send_output_tags  # noqa: PLC0415

    try:
        for folder, sent, locked in todo:
            send_output_tags(tracking_uri(root), sent.run, sent.models, locked.outs)
            _note(folder, sent, locked)
    except TrackingError as error:
        logger.warning("output hashes are not in MLflow yet. %s", error)
    return len(todo)


def _note(folder: Path, sent: Sent, locked: LockedStage) -> None:
    sent.outs = dict(locked.outs)
    save_sent(folder, sent)


def run_behind(root: Path, stage: str, locked: LockedStage) -> Path | None:
    """The spool of the run that made what `dvc.lock` names for a stage, if it is here."""
    for folder in reversed(spools(root, stage)):
        finish = read_finish(folder)
        if finish is None or finish["status"] != "FINISHED":
            continue
        start: dict[str, Any] = json.loads((folder / "start.json").read_text("utf-8"))
        known = start["inputs"]
        if all(locked.deps.get(path, digest) == digest for path, digest in known.items()):
            return folder
    return None
