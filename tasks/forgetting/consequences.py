"""What follows from a withdrawal: the stages that run again, and the models that contain it."""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from tasks.tracing.ancestry import Ancestry, Model
from tasks.tracing.contents import ContentError, Contents
from tasks.tracing.records import Ran, RecordError
from tasks.workspace.stage_inputs import overlap


def holding(runs: Sequence[Ran], contents: Contents, digests: AbstractSet[str]) -> set[str]:
    """The stages of whose outputs a file has one of these hashes."""
    return {
        ran.stage
        for ran in runs
        for path, digest in ran.outs.items()
        if digest in digests or not digests.isdisjoint(_files(contents, path, digest))
    }


def gone(runs: Sequence[Ran], contents: Contents) -> set[str]:
    """The stages of whose outputs a file is not on this machine, as after an earlier withdrawal."""
    return {
        ran.stage
        for ran in runs
        if not all(_is_here(contents, path, digest) for path, digest in ran.outs.items())
    }


def stale(runs: Sequence[Ran], changed: Iterable[str]) -> list[str]:
    """The stages whose result changes with those of `changed`, these included, in their order."""
    outs = {ran.stage: list(ran.outs) for ran in runs}
    needs = {
        ran.stage: {
            other
            for other, theirs in outs.items()
            if other != ran.stage and any(overlap(dep, out) for dep in ran.deps for out in theirs)
        }
        for ran in runs
    }
    found = set(changed) & set(outs)
    while more := {one for one in needs if one not in found and needs[one] & found}:
        found |= more
    return [ran.stage for ran in runs if ran.stage in found]


def readers(runs: Sequence[Ran], paths: Collection[str]) -> list[str]:
    """The stages that read one of these files."""
    return [ran.stage for ran in runs if any(path in ran.deps for path in paths)]


def containing(
    ancestry: Ancestry, models: Iterable[Model], digests: Collection[str]
) -> tuple[list[Model], list[Model]]:
    """Of these models, those that a file with one of these hashes formed; and untraceable ones."""
    found, untraceable = [], []
    for model in models:
        try:
            files = {digest for part in ancestry.parts(model) for digest in ancestry.files(part)}
        except (RecordError, ContentError):
            untraceable.append(model)
            continue
        if not files.isdisjoint(digests):
            found.append(model)
    return found, untraceable


def _files(contents: Contents, path: str, digest: str) -> set[str]:
    if not digest.endswith(".dir"):
        return set()
    try:
        return set(contents.files(path, digest).values())
    except ContentError:
        return set()


def _is_here(contents: Contents, path: str, digest: str) -> bool:
    try:
        files = {path: digest}
        if digest.endswith(".dir"):
            listed = contents.files(path, digest)
            files = {f"{path}/{name}": md5 for name, md5 in listed.items()}
        for name, md5 in files.items():
            contents.file(name, md5)
    except ContentError:
        return False
    return True
