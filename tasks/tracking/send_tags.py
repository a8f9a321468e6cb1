"""Sends the DVC hashes of what a run has written to MLflow."""

from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import RunTag

from tasks.tracking.send import named_errors
from tasks.tracking.store import connect, logged_files, mlflow_key
from tasks.workspace.dvc_cache import cache_folder
from tasks.workspace.shared_weights import DRAFTS, share_with_cache


def send_output_tags(
    root: Path, uri: str, run: str, models: Mapping[str, str], outs: Mapping[str, str]
) -> None:
    """Tag a run, and the models it logged, with the DVC hashes of its outputs.

    The models' weights become links to those in DVC's cache, where MLflow keeps them on this disk.

    Args:
        root: the workspace whose DVC has hashed the outputs.
        uri: of the tracking store.
        run: id of the run.
        models: output path -> id of the logged model.
        outs: output path -> hash.

    Raises:
        TrackingError: MLflow could not be reached, or refused it.
    """
    cache, drafts = cache_folder(root), root / DRAFTS
    with named_errors():
        store = connect(uri)
        client = store.client
        tags = [RunTag(mlflow_key(f"dvc.out.{path}"), digest) for path, digest in outs.items()]
        client.log_batch(run, tags=tags)
        for path, model in models.items():
            if path in outs:
                client.set_logged_model_tags(model, {"dvc.path": path, "dvc.md5": outs[path]})
                if logged := logged_files(store, model):
                    share_with_cache(logged, cache, outs[path], drafts=drafts)
