"""Policies of a run about which people have been asked, and have not decided.

An answer has the question asked anew, from what is in the workspace.
"""

import time
from pathlib import Path
from typing import Any

from tasks.pruning.leftovers import PruneError
from tasks.tracking.registered_names import PATIENCE_SECONDS, POLICY, VERDICTS
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.workspace.files import read_json


def undecided(root: Path, workspace: Path) -> list[str]:
    """The rounds of these policies; not those whose question is too old to be answered.

    Raises:
        PruneError: MLflow does not say.
    """
    young = [
        path
        for path in sorted((workspace / VERDICTS).glob("*.json"))
        if time.time() - path.stat().st_mtime < PATIENCE_SECONDS
    ]
    return _undecided(root, [read_json(path) or {} for path in young]) if young else []


def _undecided(root: Path, verdicts: list[dict[str, Any]]) -> list[str]:
    quiet_mlflow()
    # Imported here: they bring MLflow, which takes seconds.
    from tasks.tracking.registered import version_with  # noqa: PLC0415
    from tasks.tracking.send import TrackingError, named_errors  # noqa: PLC0415
    from tasks.tracking.store import connect  # noqa: PLC0415

    try:
        with named_errors():
            client = connect(tracking_uri(root)).client
            asked = {
                str(one["round_key"]): version_with(client, POLICY, str(one["digest"]))
                for one in verdicts
                if "digest" in one
            }
    except TrackingError as error:
        raise PruneError(f"MLflow does not say what people have decided: {error}") from None
    return [key for key, one in asked.items() if one is not None and "decision" not in one.tags]
