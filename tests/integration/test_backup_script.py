"""deploy/backup.sh without its servers, and what its page has people do."""

import os
import re
import subprocess
from pathlib import Path

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


def test_the_contents_of_a_backup_are_on_the_disk_before_its_name(tmp_path: Path) -> None:
    """`sync FOLDER` writes the folder's list of names and nothing of its files."""
    folders = {name: tmp_path / name.lower() for name in ("BACKUPS", "OBJECTS", "RLHF_DATA")}
    commands = tmp_path / "commands"
    for folder in (*folders.values(), commands):
        folder.mkdir()
    for name, text in (("pg_dump", PG_DUMP), ("sync", SYNC)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (folders["OBJECTS"] / "one").write_text("object")
    synced = tmp_path / "synced"
    places = {name: str(folder) for name, folder in folders.items()}
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"

    subprocess.run(
        ["bash", "deploy/backup.sh"],
        cwd=ROOT,
        env={**os.environ, **places, "PATH": path, "SYNCED": str(synced)},
        check=True,
    )

    *names, given = synced.read_text().splitlines()
    assert "SHA256SUMS" in names
    assert "--file-system" in given or all(f"/{name}" in given for name in names)


def test_an_upgrade_builds_every_image_that_the_start_builds() -> None:
    """The worker's code is that of its image."""
    _, start, rest = re.split(r"^## (?:Start|People who label)$", PAGE.read_text(), flags=re.M)
    upgrades = rest.partition("## Upgrades")[2].partition("\n## ")[0]
    built = re.findall(r"docker build[^`\n]*\.", start)
    assert len(built) > 1
    assert [command for command in built if command not in upgrades] == []
