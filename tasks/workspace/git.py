"""Runs git in a folder, without its hooks: `dvc install` would check out data at every call."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.params.redaction import redact

_SIGNS = ("! ", "fatal: ", "error: ")
"""How a line begins that says what went wrong; the first of them says it best."""
_CONNECTION = "fatal: Could not read from remote repository"
"""Why, ssh has said in the line before."""

_PLACES = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
"""By these git tells its hooks where they are, and they count more than `-C`."""


class GitError(Exception):
    """Git refused; the message is the line of git's own that says why."""


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
        # In English, which `_reason` and `forget_lost` read.
        env={
            **surroundings(),
            "LC_ALL": "C.UTF-8",
            "GIT_TERMINAL_PROMPT": "0",
            **(variables or {}),
        },
    )
    if done.returncode != 0:
        # An address may hold a token, and git says it where a server asks for its password.
        raise GitError(redact(f"git {' '.join(arguments[:2])}: {_reason(done.stderr)}"))
    return done.stdout.strip()


def surroundings() -> dict[str, str]:
    """The environment in which git finds the repository of the folder that it is called for."""
    return {name: value for name, value in os.environ.items() if name not in _PLACES}


def _reason(said: str) -> str:
    """The line in which git says what went wrong; after it, git often gives advice."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("hint:")] or ["no message"]
    for sign in _SIGNS:
        for before, line in zip(["", *lines], lines, strict=False):
            if line.startswith(sign):
                return f"{before}; {line}" if before and line.startswith(_CONNECTION) else line
    return lines[-1]
