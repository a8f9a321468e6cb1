"""The runs that are kept, as their `dvc.lock` records them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.tracing.contents import Contents
from tasks.tracing.records import Ran, RecordError, recorded_in, runs_of
from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.git import git


def kept_runs(root: Path, places: Sequence[Path], *, tips: bool) -> Iterator[Ran]:
    """The runs of all commits, or of the newest of each branch and tag, and those of workspaces.

    Experiments of `dvc exp run` are among them either way, until `dvc exp remove` lets them go.

    Raises:
        RecordError: the `dvc.lock` of a workspace is damaged, so nobody can say what it needs.
    """
    for place in places:
        yield from runs_of(place, None)
    if tips:
        kinds = ("refs/heads", "refs/tags", "refs/exps")
        commits = git(root, "for-each-ref", "--format=%(objectname)", *kinds).split()
    else:
        commits = recorded_in(root, "--exclude=refs/stash", "--all")  # as DVC does
    for commit in commits:
        try:
            yield from runs_of(root, commit)
        except RecordError:
            continue


def only_stashed(root: Path, runs: Sequence[Ran]) -> list[str]:
    """Outputs in the cache that `git stash` names and none of these runs; DVC would remove them."""
    kept = {digest for ran in runs for digest in ran.outs.values()}
    cache = cache_folder(root)
    stashed = (
        out
        for commit in git(root, "stash", "list", "--format=%H").split()
        for ran in runs_of(root, commit)
        for out in ran.outs.items()
    )
    return [
        path
        for path, digest in stashed
        if digest not in kept and (cache / digest[:2] / digest[2:]).exists()
    ]


def has_strangers(root: Path, runs: Sequence[Ran]) -> bool:
    """Whether DVC's cache holds an object that none of these runs wrote."""
    contents = Contents(root)
    named: set[str] = set()
    paths = {digest: path for ran in runs for path, digest in ran.outs.items()}
    for digest, path in paths.items():
        named |= {digest, *contents.known_files(path, digest).values()}
    found = cache_folder(root).glob("??/*")
    return any(path.parent.name + path.name not in named for path in found)
