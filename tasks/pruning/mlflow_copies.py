"""Copies of models in MLflow's own folder that no kept run and no production refers to."""

from collections.abc import Iterator, Sequence

from tasks.pruning.leftovers import Leftover
from tasks.tracing.records import Ran
from tasks.tracking.registered import needed_hashes
from tasks.tracking.store import Store, logged_files
from tasks.tracking.withdrawn import HASH_TAG, logged_models


def copies(store: Store, runs: Sequence[Ran]) -> Iterator[Leftover]:
    """Model folders below MLflow's artifacts that are neither of these runs nor for production.

    The run keeps its params, metrics and tags; only the weights go.
    """
    kept = {digest for ran in runs for digest in ran.outs.values()}
    kept |= needed_hashes(store)
    for model in logged_models(store):
        digest = model.tags.get(HASH_TAG)
        folder = logged_files(store, model.model_id)
        # Without a hash it has just arrived, and nobody can say yet which run it is of.
        if digest and digest not in kept and folder is not None and folder.is_dir():
            yield Leftover("MLflow's copies", f"{model.name} {digest[:9]}", (folder,))
