"""DVC's and git's remotes of a workspace, and DVC's commands that use them."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from flows import processes
from flows.environment import stage_environment
from tasks.params.redaction import redact
from tasks.workspace.git import git

TRANSFERS = ("push", "pull", "fetch")
"""Commands of DVC's that use the default remote."""
ABSENT = 1
"""Exit code where that is a folder which is not there."""


def dvc(
    workspace: Path,
    execution: str,
    *arguments: str,
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> int:
    """Exit code of a command of DVC's, which ends when we do; what it says goes to the log.

    It waits where another process uses DVC in this workspace. To and from a remote that is a folder
    which is not there nothing is transferred: DVC would make it, on whichever disk is in its place.
    """
    if arguments[0] in TRANSFERS and (problem := absent_folder(workspace)):
        logger.error("%s", problem)
        return ABSENT
    process = processes.start(
        [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments],
        cwd=workspace,
        env=stage_environment(workspace, execution),
        output=subprocess.PIPE,
    )
    for line in processes.lines(process):
        logger.info("%s", redact(line.decode("utf-8", "replace")))
    return process.wait()


def absent_folder(workspace: Path) -> str:
    """What to say of DVC's default remote if it is a folder that is not there; else empty.

    A mount point is there without what is mounted: only a folder below it tells.
    """
    # Imported here: a run that transfers nothing needs none of DVC in its process.
    from dvc.config import Config, ConfigError  # noqa: PLC0415

    try:
        config = Config(dvc_dir=str(workspace / ".dvc"))
    except ConfigError:  # Which DVC itself explains.
        return ""
    name = config["core"].get("remote", "")
    url = config["remote"].get(name, {}).get("url", "")
    if not url or "://" in url or Path(url).is_dir():
        return ""
    return f"DVC's remote {name!r}, {url}: no such folder; mount it, or make it if it is new"


def dvc_remote(workspace: Path) -> str:
    """DVC's default remote, empty where there is none."""
    command = [sys.executable, "-m", "dvc", "config", "core.remote"]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def git_remote(workspace: Path) -> str | None:
    """Where git pushes to by itself; None where there is no remote, or nothing says which."""
    names = git(workspace, "remote").splitlines()
    configured = git(workspace, "config", "--default", "", "--get", "remote.pushDefault")
    if configured:
        return configured
    return "origin" if "origin" in names else names[0] if len(names) == 1 else None
