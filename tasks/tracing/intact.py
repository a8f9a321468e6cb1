"""Whether outputs are what `dvc.lock` says, by hashing alone: DVC itself is not needed for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.tracing.contents import FOLDER, ContentError, Contents
from tasks.tracing.records import Ran
from tasks.workspace.dvc_cache import cache_folder, md5, output_hash


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of all outputs of a `dvc.lock`."""

    equal: tuple[str, ...]
    """In the workspace, with the recorded bytes."""
    cached: tuple[str, ...]
    """Not in the workspace, and whole in DVC's cache."""
    wrong: tuple[str, ...]
    """Each with what is wrong, in words."""


def check(root: Path, runs: Sequence[Ran]) -> Checked:
    """Hash every output again; one that is not checked out, in the cache."""
    equal, cached, wrong = [], [], []
    contents = Contents(root)
    for ran in runs:
        for path, digest in ran.outs.items():
            here = root / path
            if not here.exists():
                problem = _damage(root, contents, path, digest)
                if problem is None:
                    cached.append(path)
                else:
                    wrong.append(f"{path} ({ran.stage}): {problem}")
            elif (found := output_hash(here)) == digest:
                equal.append(path)
            else:
                wrong.append(f"{path} ({ran.stage}): md5 is {found}, {digest} in dvc.lock")
    return Checked(tuple(equal), tuple(cached), tuple(wrong))


def _damage(root: Path, contents: Contents, path: str, digest: str) -> str | None:
    """What is wrong with an output in the cache, None if nothing is."""
    cache = cache_folder(root)
    try:
        if digest.endswith(FOLDER):
            listing = cache / digest[:2] / digest[2:]
            files = contents.files(path, digest).values()
            objects = {digest.removesuffix(FOLDER): listing}
            objects |= {one: cache / one[:2] / one[2:] for one in files}
        else:
            objects = {digest: contents.file(path, digest)}
    except ContentError:
        return "missing, here and in the cache"
    for name, place in objects.items():
        if not place.is_file():
            return f"missing, and its object {name} is not in the cache"
        if md5(place) != name:
            return f"missing, and its object {name} in the cache is damaged"
    return None
