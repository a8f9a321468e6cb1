"""Re-hashes DVC's objects: cached ones against their names, outputs against `dvc.lock`.

`dvc checkout` silently restores a damaged object; this finds it before it is used.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tasks.workspace.dvc_lockfile import read_lock, read_whole_lock

_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30}(\.dir)?$")


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """A cached object whose content does not match its name."""

    path: Path
    expected: str
    found: str

    def fix(self, good: dict[str, Path]) -> str:
        """Replace it with an intact copy from the outputs, or remove it; says which."""
        self.path.chmod(0o644)
        self.path.unlink()
        if (source := good.get(self.expected)) is None:
            return "removed; dvc pull or dvc repro brings it back"
        draft = self.path.with_name(f".{self.path.name}.draft")
        shutil.copyfile(source, draft)
        draft.chmod(0o444)
        draft.replace(self.path)
        return f"replaced by {source}, which is intact"


def cache_folder(root: Path) -> Path:
    """Where DVC keeps the objects of a workspace: the last of its settings that names a folder."""
    found = root / ".dvc" / "cache"
    for path in _settings(root):
        config = ConfigParser(interpolation=None)
        config.read(path, encoding="utf-8")
        if folder := config.get("cache", "dir", fallback=""):
            found = path.parent / Path(unquoted(folder)).expanduser()
    return found / "files" / "md5"


def quoted(value: str) -> str:
    """A value for DVC's settings, in which a bare # begins a comment and a comma makes a list."""
    if not re.search("[#,'\"]", value):
        return value
    return f'"{value}"' if "'" in value else f"'{value}'"


def unquoted(value: str) -> str:
    """The value as DVC takes it."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def _settings(root: Path) -> list[Path]:
    """DVC's files of settings: the machine's, the user's, the repository's, the checkout's."""
    # Imported here: DVC brings it, and most who import this module read no settings.
    from platformdirs import site_config_dir, user_config_dir  # noqa: PLC0415

    names = ("dvc", "iterative")
    machine = os.environ.get("DVC_SYSTEM_CONFIG_DIR") or site_config_dir(*names)
    user = os.environ.get("DVC_GLOBAL_CONFIG_DIR") or user_config_dir(*names)
    own = root / ".dvc"
    return [Path(machine, "config"), Path(user, "config"), own / "config", own / "config.local"]


def is_cached(cache: Path, digest: str) -> bool:
    """Whether DVC's cache holds an output: its object and, for a folder, those of all its files."""
    listed = cache / digest[:2] / digest[2:]
    if not listed.is_file():
        return False
    if not digest.endswith(".dir"):
        return True
    files = json.loads(listed.read_text(encoding="utf-8"))
    return all((cache / file["md5"][:2] / file["md5"][2:]).is_file() for file in files)


def is_sound(cache: Path, digest: str) -> bool:
    """As `is_cached`, with each object re-hashed."""
    listed = cache / digest[:2] / digest[2:]
    if not listed.is_file() or md5(listed) != digest.removesuffix(".dir"):
        return False
    if not digest.endswith(".dir"):
        return True
    files = json.loads(listed.read_text(encoding="utf-8"))
    return all(is_sound(cache, file["md5"]) for file in files)


def damaged_objects(cache: Path) -> Iterator[DamagedObject]:
    """Re-hash every object of a cache."""
    for path in sorted(cache.glob("??/*")):
        if not _NAME.search(path.as_posix()):
            continue
        expected = path.parent.name + path.name.removesuffix(".dir")
        if (found := md5(path)) != expected:
            yield DamagedObject(path, expected, found)


def sound_files(root: Path) -> dict[str, Path]:
    """md5 -> an output file with that md5; none where dvc.lock is damaged."""
    files = [
        file
        for locked in (read_whole_lock(root) or {}).values()
        for out in locked.outs
        for file in ([root / out] if (root / out).is_file() else (root / out).rglob("*"))
        if file.is_file()
    ]
    return {md5(file): file for file in files}


class DifferingOutput(NamedTuple):
    """An output that is not what `dvc.lock` records."""

    path: str
    expected: str
    found: str | None
    """Its hash; None where it is missing."""


def differing_outputs(root: Path) -> Iterator[DifferingOutput]:
    """Each output that differs from `dvc.lock`."""
    for locked in read_lock(root).values():
        for path, expected in locked.outs.items():
            found = output_hash(root / path) if (root / path).exists() else None
            if found != expected:
                yield DifferingOutput(path, expected, found)


def output_hash(path: Path) -> str:
    """The hash that DVC gives a file or folder; for a folder, the md5 of its list of files."""
    if path.is_file():
        return md5(path)
    files = [file for file in path.rglob("*") if file.is_file()]
    return folder_hash({file.relative_to(path).as_posix(): md5(file) for file in files})


def folder_hash(files: Mapping[str, str]) -> str:
    """The hash that DVC gives a folder with these files: path below it -> md5."""
    listing = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    text = json.dumps(listing, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def md5(path: Path) -> str:
    """The file's md5 in hex, as DVC names objects."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
