"""deploy/backup.sh without its servers, and what its page has people do."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/team-servers.md"

PG_DUMP = """#!/bin/bash
while [[ $1 != --file ]]; do shift; done
echo rows > "$2"
"""
SYNC = """#!/bin/bash
ls "$BACKUPS"/.part.* > "$SYNCED"
echo "$*" >> "$SYNCED"
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The variables of the script, with a folder for each and stand-ins for what is not here."""
    folders = {name: tmp_path / name.lower() for name in ("BACKUPS", "OBJECTS", "RLHF_DATA")}
    commands = tmp_path / "commands"
    for folder in (*folders.values(), commands):
        folder.mkdir()
    for name, text in (("pg_dump", PG_DUMP), ("sync", SYNC)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (folders["OBJECTS"] / "one").write_text("object")
    return {
        **{name: str(folder) for name, folder in folders.items()},
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "SYNCED": str(tmp_path / "synced"),
    }


def back_up(places: dict[str, str], **variables: str) -> Path:
    """The new backup."""
    env = {**os.environ, **places, **variables}
    subprocess.run(["bash", "deploy/backup.sh"], cwd=ROOT, env=env, check=True)
    (backup,) = Path(places["BACKUPS"]).iterdir()
    return backup


def test_the_contents_of_a_backup_are_on_the_disk_before_its_name(places: dict[str, str]) -> None:
    """`sync FOLDER` writes the folder's list of names and nothing of its files."""
    back_up(places)

    *names, given = Path(places["SYNCED"]).read_text().splitlines()
    assert "SHA256SUMS" in names
    assert "--file-system" in given or all(f"/{name}" in given for name in names)


def test_a_push_during_a_backup_leaves_no_branch_without_its_commit(places: dict[str, str]) -> None:
    """What a branch names is read after the branch, in whatever order a disk lists its names."""
    branches = Path(places["RLHF_DATA"]) / "branches.git"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(branches)]
    subprocess.run(["git", "init", "--quiet", "--bare", branches], check=True)
    empty = subprocess.check_output([*git, "mktree"], input=b"").decode().strip()
    commit = subprocess.check_output([*git, "commit-tree", empty, "-m", "one"]).decode().strip()
    subprocess.run([*git, "update-ref", "refs/heads/runs/one", commit], check=True)

    backup = back_up(places, TAR_OPTIONS="--sort=name")

    kept = ["tar", "--list", "--file", backup / "branches.tar"]
    names = subprocess.check_output(kept, text=True).splitlines()
    first = min(n for n, name in enumerate(names) if name.startswith("branches.git/objects/"))
    assert names.index("branches.git/refs/heads/runs/one") < first
    restored = backup / "restored"
    restored.mkdir()
    extract = ["tar", "--extract", "--file", backup / "branches.tar", "--directory", restored]
    subprocess.run(extract, check=True)
    found = ["git", "-C", restored / "branches.git", "rev-parse", "runs/one^{tree}"]
    assert subprocess.check_output(found, text=True).strip() == empty


def test_an_upgrade_builds_every_image_that_the_start_builds() -> None:
    """The worker's code is that of its image."""
    _, start, rest = re.split(r"^## (?:Start|People who label)$", PAGE.read_text(), flags=re.M)
    upgrades = rest.partition("## Upgrades")[2].partition("\n## ")[0]
    built = re.findall(r"docker build[^`\n]*\.", start)
    assert len(built) > 1
    assert [command for command in built if command not in upgrades] == []
