"""git in the folders of tests."""

import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """What git says; it knows an author for commits."""
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
