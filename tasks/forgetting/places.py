"""Where on this machine it is: DVC's cache, outputs, working files, and the user's own files.

Every text file is read, whichever commit or variant it belongs to. The files of a model are not
(`tasks.forgetting.of_models`).
"""

import json
import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.forgetting.of_models import is_of_a_model, listings, objects_of_models
from tasks.forgetting.wanted import Wanted
from tasks.tracing.records import Ran
from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.orders import ENDING
from tasks.workspace.worktrees import workspaces

Place = Literal["cache", "output", "work", "own"]
TEXT_START = 4096
"""Bytes in which a zero gives a binary file away."""
SKIPPED = (".db", ".db-wal", ".db-shm", ".safetensors", ".lock")
WRITTEN = ("data/prepared", "data/rounds", "results", "reports")
"""Folders of outputs, which may have more than dvc.lock names: of a stage whose DVC was killed, or
what a driver writes."""
ENDS = ("outcome.json", "finish.json", "end.json", ENDING)
"""Files with a `message`, in which a stage or an execution says how it ended, here or elsewhere."""
_LINE = re.compile("[^\n]+")

SeeRow = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that has it."""

    place: Place
    path: Path
    rows: int
    """Rows that have it; 1 for a file that is not made of rows."""


def in_cache(root: Path, wanted: Wanted, see: SeeRow) -> list[Found]:
    """Objects of DVC's cache, whatever names them; `see` is shown each row that has it."""
    cache = cache_folder(root)
    objects = (path for path in sorted(cache.glob("??/*")) if path.is_file())
    of_models = objects_of_models(cache)
    plain = (path for path in objects if path.suffix != ".dir" and path not in of_models)
    return [Found("cache", path, rows) for path in plain if (rows := count(path, wanted, see))]


def lists_of(root: Path, digests: Set[str]) -> set[str]:
    """Hashes of the folders in DVC's cache that have a file with one of these hashes."""
    return {
        listing.parent.name + listing.name
        for listing, entries in listings(cache_folder(root))
        if not digests.isdisjoint(entry["md5"] for entry in entries)
    }


def in_outputs(workspace: Path, runs: list[Ran], wanted: Wanted, see: SeeRow) -> list[Found]:
    """Outputs of a workspace as they are on disk."""
    outs = [workspace / out for out in (*WRITTEN, *(out for ran in runs for out in ran.outs))]
    files = dict.fromkeys(
        file
        for out in outs
        for file in ([out] if out.is_file() else sorted(out.rglob("*")))
        if not is_of_a_model(file)
    )
    return [Found("output", path, rows) for path in files if (rows := count(path, wanted, see))]


def in_work(workspace: Path, wanted: Wanted) -> list[Found]:
    """Working files: logs, reports that were blocked, replies of judges, what waits for MLflow.

    And MLflow's artifacts. The labelling store, which is searched by itself, is no text.
    """
    work, aside = workspace / ".work", workspaces(workspace)
    files = [
        path
        for path in sorted(work.rglob("*"))
        if not any(path.is_relative_to(folder) for folder in aside) and not is_of_a_model(path)
    ]
    found = {path: count(path, wanted, lambda _: None) or _says(path, wanted) for path in files}
    return [Found("work", path, rows) for path, rows in found.items() if rows]


def in_own_files(workspace: Path, paths: list[str], wanted: Wanted, see: SeeRow) -> list[Found]:
    """Files that params.yaml names; in a workspace they are links to those of the checkout."""
    files = _own(workspace, paths)
    return [Found("own", path, rows) for path in files if (rows := count(path, wanted, see))]


def not_searched(workspace: Path, paths: list[str]) -> list[Path]:
    """Those of the files that params.yaml names in which `count` finds nothing, whatever they hold.

    They are packed, binary, in another encoding, or links inside a folder. Weights are not among
    them.
    """
    return [
        path
        for path in _own(workspace, paths)
        if path.suffix not in SKIPPED
        and (path.is_symlink() or (path.is_file() and _text(path) is None))
    ]


def _own(workspace: Path, paths: list[str]) -> list[Path]:
    named = [real(workspace / path) for path in dict.fromkeys(paths)]
    return [
        file
        for path in named
        for file in (
            [path]
            if path.is_file()
            else [one for one in sorted(path.rglob("*")) if not is_of_a_model(one)]
        )
    ]


def real(path: Path) -> Path:
    """What a link leads to; the same path where there is none."""
    return path.resolve() if path.is_symlink() else path


def count(path: Path, wanted: Wanted, see: SeeRow) -> int:
    """How many rows of a file have it; 1 for a text that is not rows, 0 for what is no text."""
    if path.is_symlink() or not path.is_file() or path.suffix in SKIPPED:
        return 0
    text = _text(path)
    if text is None:
        return 0
    if not text.lstrip().startswith(("{", "[")):
        return int(wanted.page(text))
    if not wanted.possible(text):
        return 0
    if (found := _having(text, wanted)) is None:
        return int(wanted.page(text))
    for row in found:
        see(row)
    return len(found)


def _having(text: str, wanted: Wanted) -> list[dict[str, Any]] | None:
    """The rows that have it, of which alone all are held; None for a text that is not rows."""
    found = []
    for row in _rows(text):
        if row is None:
            return None
        if wanted.row(row):
            found.append(row)
    return found


def _says(path: Path, wanted: Wanted) -> int:
    """1 for the record of an end whose message has it in its words, or a judge's reply a prompt."""
    of_a_judge = wanted.kind == "prompt" and path.parent.parent.name == "verdicts"
    if not (of_a_judge or path.name in ENDS) or not path.is_file():
        return 0
    said, records = "reply" if of_a_judge else "message", list(_rows(_text(path) or ""))
    if None in records:
        return 0
    return int(any(wanted.page(str(record.get(said, ""))) for record in records if record))


def _text(path: Path) -> str | None:
    """The content of a file without its byte order mark; None for what is no UTF-8 text."""
    with path.open("rb") as stream:
        start = stream.read(TEXT_START)
        if b"\0" in start:
            return None
        content = start + stream.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _rows(text: str) -> Iterator[dict[str, Any] | None]:
    """The objects of JSON Lines, or the one of a JSON file; None at the end of any other text.

    A list of something else is one.
    """
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict):
        yield whole
    elif isinstance(whole, list):
        yield from whole if all(isinstance(row, dict) for row in whole) else [{"": whole}]
    else:
        yield from _objects(text)


def _objects(text: str) -> Iterator[dict[str, Any] | None]:
    for found in _LINE.finditer(text):
        if (line := found[0]).strip():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                yield None
                return
            yield row
