"""Runs git in a folder, without its hooks: `dvc install` would check out data at every call."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class GitError(Exception):
    """Git refused; the message is the last line of git's own."""


def git(
    folder: Path,
    *arguments: str,
    settings: Sequence[str] = (),
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What git prints.

    Args:
        folder: where it runs.
        arguments: the command and what follows it.
        settings: for this call only, such as `user.name=somebody`.
        stdin: what git reads.
        variables: of the environment, for this call, such as `GIT_INDEX_FILE`.

    Raises:
        GitError: git failed.
    """
    given = [
        part for setting in ("core.hooksPath=/dev/null", *settings) for part in ("-c", setting)
    ]
    command = ["git", "-C", str(folder), *given, *arguments]
    # With a prompt, nobody would be there to answer.
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        input=stdin or "",
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0", **(variables or {})},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise GitError(f"git {' '.join(arguments[:2])}: {lines[-1]}")
    return done.stdout.strip()
