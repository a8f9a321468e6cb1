"""Runs git in a folder, without its hooks: `dvc install` would check out data at every call."""

import subprocess
from pathlib import Path


class GitError(Exception):
    """Git refused; the message is the last line of git's own."""


def git(folder: Path, *arguments: str) -> str:
    """What git prints.

    Raises:
        GitError: git failed.
    """
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise GitError(f"git {' '.join(arguments[:2])}: {lines[-1]}")
    return done.stdout.strip()
