"""Where to find an execution's runs in MLflow, as far as that is known."""

import json
import os
import re
from pathlib import Path

from tasks.tracking.sent import load_sent
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.spools import spools


def mlflow_ui(root: Path) -> str | None:
    """Address of MLflow's UI as far as it is known, without credentials.

    That is `RLHF_MLFLOW_UI` (`make ui` sets it), or the tracking server itself.
    """
    known = os.environ.get("RLHF_MLFLOW_UI") or tracking_uri(root)
    if not known.startswith(("http://", "https://")):
        return None
    return re.sub(r"//[^/@]*@", "//", known).rstrip("/")


def mlflow_runs(root: Path, execution: str) -> dict[str, str]:
    """Stage -> id of its MLflow run, for the stages of `execution` that MLflow has so far."""
    runs = {}
    for folder in spools(root):
        start = json.loads((folder / "start.json").read_text(encoding="utf-8"))
        if start["execution"] != execution:
            continue
        if run := load_sent(folder, tracking_uri(root)).run:
            runs[str(start["stage"])] = run
    return runs


def run_link(address: str, run: str) -> str:
    """The page of a run; MLflow's UI finds the experiment by itself."""
    return f"{address}/#/runs/{run}"
