"""Tags MLflow runs and models with the DVC hashes of what they produced.

A stage cannot know them: DVC hashes its outputs after it has ended. So whoever runs the pipeline
adds them from `dvc.lock` (the driver, the flow, `make sync`). From then on MLflow's weights are
links to those in DVC's cache, where both are on one disk.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.tracking.sent import Sent, load_sent, save_sent
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.tracking.spool import read_finish
from tasks.tracking.spools import run_behind
from tasks.workspace.dvc_lockfile import LockedStage, read_lock

logger = logging.getLogger(__name__)


def tag_outputs(root: Path, lock: Mapping[str, LockedStage] | None = None) -> int:
    """Tag the run behind each stage of `dvc.lock` as `dvc.out.<path>`; how many runs were tagged.

    The run behind a stage is the newest that wrote the bytes that `dvc.lock` names: after a
    checkout of an older commit that is an older run, and for outputs pulled from another machine
    there is none here. Goes on after one that MLflow refuses, and stops if it does not respond; the
    next call tries again.

    Args:
        root: the workspace.
        lock: what its `dvc.lock` says, if that has been read.
    """
    if not (todo := list(untagged(root, lock))):
        return 0
    quiet_mlflow()
    # Imported here: takes 1.5 s, which a call with nothing to tag should not cost.
    from tasks.tracking.send import TrackingError  # noqa: PLC0415
    from tasks.tracking.send_tags import send_output_tags  # noqa: PLC0415

    tagged = 0
    for folder, sent, outs in todo:
        try:
            send_output_tags(root, tracking_uri(root), sent.run, sent.models, outs)
        except TrackingError as error:
            stage = folder.parent.name
            logger.warning("%s: output hashes are not in MLflow yet. %s", stage, error)
            if error.refused:
                continue
            break
        sent.outs = dict(outs)
        save_sent(folder, sent)
        tagged += 1
    return tagged


def untagged(
    root: Path, lock: Mapping[str, LockedStage] | None = None
) -> Iterator[tuple[Path, Sent, Mapping[str, str]]]:
    """The runs that have arrived without the hashes of what they wrote.

    One whose models have not arrived waits for them.

    Args:
        root: the workspace.
        lock: what its `dvc.lock` says, if that has been read.

    Yields:
        The spool of each, what has arrived of it, and output path -> hash.
    """
    for stage, locked in (read_lock(root) if lock is None else lock).items():
        folder = run_behind(root, stage, locked)
        if folder is None:
            continue
        sent, finish = load_sent(folder, tracking_uri(root)), read_finish(folder)
        # Not by what an attempt sent that was interrupted, and that this run has resumed.
        arrived = finish is not None and sent.ended_ms == finish["ended_ms"] and sent.models_done
        if arrived and sent.outs != locked.outs:
            yield folder, sent, locked.outs
