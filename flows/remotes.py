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


def dvc(
    workspace: Path,
    execution: str,
    *arguments: str,
    logger: logging.Logger | logging.LoggerAdapter[Any],
) -> int:
    """Exit code of a command of DVC's, which ends when we do; what it says goes to the log.

    It waits where another process uses DVC in this workspace.
    """
    process = processes.start(
        [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments],
        cwd=workspace,
        env=stage_environment(workspace, execution),
        output=subprocess.PIPE,
    )
    for line in processes.lines(process):
        logger.info("%s", redact(line.decode("utf-8", "replace")))
    return process.wait()


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
