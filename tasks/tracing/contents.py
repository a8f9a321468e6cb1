"""The files behind the hashes of `dvc.lock`: from DVC's cache, or from the workspace if equal."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from preferences.withdrawals import WithdrawalsError
from tasks.workspace.dvc_cache import cache_folder, folder_hash, md5, output_hash
from tasks.workspace.withdrawn import LOG, outputs_withdrawn

FOLDER = ".dir"
"""Ending of the hash of a folder."""


class ContentError(Exception):
    """What a hash stands for is not on this machine; the message says how to get it."""


class Contents:
    """Reads outputs as `dvc.lock` names them, by path and hash, whatever is checked out."""

    def __init__(self, root: Path) -> None:
        """Opens nothing yet."""
        self._root = root
        self._cache = cache_folder(root)
        self._listings: dict[str, dict[str, str]] = {}
        self._workspace: dict[str, str] = {}

    def rows(self, path: str, digest: str) -> Iterator[dict[str, Any]]:
        """The rows of a JSON Lines file.

        Raises:
            ContentError: it is not here, or damaged.
        """
        with self.file(path, digest).open(encoding="utf-8") as stream:
            try:
                for line in stream:
                    if line.strip():
                        row: dict[str, Any] = json.loads(line)
                        yield row
            except ValueError as error:
                raise _damaged(path, digest, error) from None

    def files(self, path: str, digest: str) -> Mapping[str, str]:
        """The files of a folder: path below it -> md5.

        Raises:
            ContentError: it is not here.
        """
        if digest not in self._listings:
            self._listings[digest] = self._read_listing(path, digest)
        return self._listings[digest]

    def known_files(self, path: str, digest: str) -> Mapping[str, str]:
        """The files of a folder as the cache lists them; none of what is no folder there.

        Raises:
            ContentError: the list is damaged.
        """
        listed = self._cache / digest[:2] / digest[2:]
        return self.files(path, digest) if digest.endswith(FOLDER) and listed.is_file() else {}

    def part(self, path: str, digest: str, below: str) -> str | None:
        """The hash of a file or folder below an output, None where the output has no such thing.

        Raises:
            ContentError: the output is a folder that is not here.
        """
        if not digest.endswith(FOLDER):
            return None
        listed = self.files(path, digest)
        if below in listed:
            return listed[below]
        inner = {
            name.removeprefix(f"{below}/"): listed[name]
            for name in listed
            if name.startswith(f"{below}/")
        }
        return folder_hash(inner) if inner else None

    def _read_listing(self, path: str, digest: str) -> dict[str, str]:
        cached = self._cache / digest[:2] / digest[2:]
        if cached.is_file():
            try:
                entries = json.loads(cached.read_text(encoding="utf-8"))
            except ValueError as error:
                raise _damaged(path, digest, error) from None
            return {entry["relpath"]: entry["md5"] for entry in entries}
        here = self._root / path
        if not here.is_dir() or self._hash_here(path) != digest:
            raise self._missing(path, digest)
        return {
            file.relative_to(here).as_posix(): md5(file)
            for file in sorted(here.rglob("*"))
            if file.is_file()
        }

    def file(self, path: str, digest: str) -> Path:
        """Where the bytes of a file are.

        Raises:
            ContentError: they are not here.
        """
        for place in (self._cache / digest[:2] / digest[2:], self._root / path):
            if place.is_file() and (place != self._root / path or self._hash_here(path) == digest):
                return place
        raise self._missing(path, digest)

    def _hash_here(self, path: str) -> str:
        if path not in self._workspace:
            self._workspace[path] = output_hash(self._root / path)
        return self._workspace[path]

    def _missing(self, path: str, digest: str) -> ContentError:
        get = "`dvc fetch --all-commits` brings what was pushed"
        if digest in self._withdrawn:
            get = f"it had what was withdrawn since (see {LOG})"
        return ContentError(
            f"{path} with md5 {digest} is neither in the workspace nor in DVC's cache; {get}"
        )

    @cached_property
    def _withdrawn(self) -> set[str]:
        try:
            return outputs_withdrawn(self._root)
        except WithdrawalsError as error:
            raise ContentError(str(error)) from None


def _damaged(path: str, digest: str, error: ValueError) -> ContentError:
    return ContentError(
        f"{path}: its object {digest} in DVC's cache is damaged ({error}); `make doctor` looks for "
        "more"
    )
