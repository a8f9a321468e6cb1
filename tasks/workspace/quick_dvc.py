"""DVC's command line, with less to wait for: `python -P quick_dvc.py repro`.

After each stage DVC reads all of dvc.lock with a parser that keeps comments and writes all of it
again: 1.2 seconds for the 25 stages of the default run, 25 times. No entry depends on another, so
here the text of the stage's entry takes the place of the old one. The file is the same, byte for
byte; a dvc.lock that DVC has not laid out itself is left to DVC.

Where it is to bring several stages up to date, it starts the workspace's fork server, which spares
them their imports (tasks/workspace/fork_servers.py).

It imports nothing of ours: the workspace that it runs in may be of another revision.
"""

import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dvc.cli import main
from dvc.dvcfile import Lockfile, logger
from dvc.stage.serialize import to_lockfile
from dvc.utils.serialize import dumps_yaml

HEAD = "schema: '2.0'\nstages:\n"
_FIRST_LINE = re.compile(r"  [A-Za-z_][\w@.-]*:\n")
"""A name that DVC writes as it is; one in quotes may be the same as one without."""
_ALIAS = re.compile(r"[&*]id\d{3}")
"""One list or mapping in two places: DVC numbers these throughout the file."""

_dvcs_own = Lockfile.dump_stages
_kept: list["subprocess.Popen[bytes]"] = []
"""The fork server, whose standard input stays open until we end."""


def dump_stages(lockfile: Lockfile, stages: Sequence[Any], **options: Any) -> None:
    """Write the entries of stages that have run, as DVC's method of this name does."""
    path = Path(lockfile.path)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    after = before
    for stage in stages:
        entry = dumps_yaml({"schema": "2.0", "stages": to_lockfile(stage, **options)})
        if (changed := with_entry(after, entry)) is None:
            _dvcs_own(lockfile, stages, **options)
            return
        after = changed
    if after != before:
        logger.info("Updating lock file '%s'", lockfile.relpath)
        draft = Path(lockfile.repo.tmp_dir) / "dvc.lock.draft"
        draft.write_text(after, encoding="utf-8")
        draft.replace(path)
        lockfile.repo.scm_context.track_file(lockfile.relpath)


def with_entry(text: str, entry: str) -> str | None:
    """The text of a dvc.lock with a stage's entry: in the place of the old one, else at the end.

    Args:
        text: the whole file.
        entry: a dvc.lock with nothing but this entry.

    Returns:
        None where only DVC itself can write it: the file, or the entry, has another layout.
    """
    old, new = _entries(text), _entries(entry)
    if old is None or new is None or len(new) != 1 or _ALIAS.search(text + entry):
        return None
    return HEAD + "".join((old | new).values())


def _entries(text: str) -> dict[str, str] | None:
    """First line of each entry -> its text; None where the file has another layout."""
    lines = io.StringIO(text.removeprefix(HEAD))
    found: dict[str, str] = {}
    first = ""
    for line in lines:
        if not line.startswith("   "):
            first = line
            if first in found or not _FIRST_LINE.fullmatch(line):
                return None
        found[first] = found.get(first, "") + line
    return found if text.startswith(HEAD) and text.endswith("\n") else None


def start_fork_server(arguments: Sequence[str]) -> None:
    """Tell stages where they can have themselves run, where this workspace has such a server."""
    if arguments[:1] != ["repro"] or {"--single-item", "-s"} & set(arguments):
        return
    start = runpy.run_path(str(Path(__file__).with_name("fork_servers.py")))["start_fork_server"]
    # A Ctrl-C is for our whole session, and so is a SIGTERM of the driver's.
    if (started := start(Path.cwd(), os.environ, own_session=False)) is not None:
        os.environ["RLHF_FORK_SERVER"], server = started
        _kept.append(server)


if __name__ == "__main__":
    start_fork_server(sys.argv[1:])
    Lockfile.dump_stages = dump_stages
    sys.exit(main(sys.argv[1:]))
