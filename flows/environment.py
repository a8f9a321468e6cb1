"""The environment of every process that a flow starts: everything local, nothing sent home.

Prefect reads its settings when it is imported, so the entry points put this into `os.environ`
first and import Prefect afterwards.
"""

import os
import sys
from pathlib import Path

from tasks.tracking.shipping import tracking_uri
from tasks.workspace.account import account

QUIET = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
"""Telemetry, advertisements and update checks of the tools, off whatever the user's settings."""

PATIENT = {
    # Waits of 2, 4, 8 ... seconds: with the default of 5 a server that is away for more than a
    # minute fails a flow whose work is all done. 7 of them make four minutes.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
}

HEARTBEAT_SECONDS = 30
"""Between two heartbeats of a flow run, by which Prefect's server knows that it lives."""

PUNCTUAL = {
    # With Prefect's 180 a run could be called dead between two of its heartbeats.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
}

SAFE = {
    # A model file must not be able to run code, neither in a stage nor in the MLflow server.
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}


def environment(root: Path) -> dict[str, str]:
    """The environment of this process, with the pipeline's defaults and duties added.

    What the user has set for `PREFECT_HOME`, `PREFECT_API_URL`, `PREFECT_CLIENT_MAX_RETRIES` or
    `MLFLOW_TRACKING_URI` holds.
    """
    defaults = {
        "PREFECT_HOME": str(root / ".work" / "prefect"),
        "MLFLOW_TRACKING_URI": tracking_uri(root),
    }
    always = {**_no_proxy_for_loopback(), **QUIET, **PUNCTUAL, **SAFE}
    return {**account(), **PATIENT, **defaults, **os.environ, **always}


def stage_environment(root: Path, execution: str) -> dict[str, str]:
    """The environment of `dvc repro` and so of the stage that it runs.

    `RLHF_SHIPPER=driver` tells the stage that the flow sends its metrics to MLflow.
    """
    return {
        **environment(root),
        "RLHF_EXECUTION": execution,
        "RLHF_SHIPPER": "driver",
        "PYTHONUNBUFFERED": "1",
        # Stages call `python`: the one that runs us, whether or not its environment is activated.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def _no_proxy_for_loopback() -> dict[str, str]:
    """Our own servers listen on 127.0.0.1: no proxy of the user's may come between."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = ",".join([*filter(None, known.split(",")), "127.0.0.1", "localhost"])
    return {"no_proxy": hosts, "NO_PROXY": hosts}
