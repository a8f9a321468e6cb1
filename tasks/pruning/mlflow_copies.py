"""Copies of models in MLflow's own folder that no kept run, version or alias refers to."""

from collections.abc import Iterator
from pathlib import Path

from tasks.pruning.leftovers import Leftover
from tasks.tracing.contents import Contents
from tasks.tracing.records import RecordError, Records
from tasks.tracking.store import Store, logged_files
from tasks.tracking.withdrawn import HASH_TAG, logged_models, registered_versions
from tasks.workspace.git import git


def copies(root: Path, store: Store, places: list[Path], *, tips: bool) -> Iterator[Leftover]:
    """Model folders below MLflow's artifacts that are neither registered nor of a kept run.

    The run keeps its params, metrics and tags; only the weights go.
    """
    kept = _kept(root, places, tips=tips)
    kept |= {one.tags.get(HASH_TAG, "") for one in registered_versions(store)}
    for model in logged_models(store):
        digest = model.tags.get(HASH_TAG)
        folder = logged_files(store, model.model_id)
        # Without a hash it has just arrived, and nobody can say yet which run it is of.
        if digest and digest not in kept and folder is not None and folder.is_dir():
            yield Leftover("MLflow's copies", f"{model.name} {digest[:9]}", (folder,))


def _kept(root: Path, places: list[Path], *, tips: bool) -> set[str]:
    """Hashes of the models of all kept runs."""
    if tips:
        revisions = git(root, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags")
    else:
        revisions = git(root, "log", "--all", "--format=%H", "--", "dvc.lock")
    found = set()
    wanted = [(root, revision) for revision in revisions.split()] + [(p, None) for p in places]
    for place, revision in wanted:
        try:
            found |= set(Records(place, Contents(place), revision).models().values())
        except RecordError:
            continue
    return found
