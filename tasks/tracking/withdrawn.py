"""Marks in MLflow: which versions of models contain what was withdrawn."""

from collections.abc import Collection, Iterator

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion

from tasks.tracking.store import Store

TAG = "withdrawn"
HASH_TAG = "dvc.md5"
PAGE = 200


def mark(store: Store, digests: Collection[str], note: str) -> list[str]:
    """Tag the models with these hashes; the registered versions among them, in words.

    Such as `rlhf-policy version 2 (production)`.
    """
    for model in logged_models(store):
        if model.tags.get(HASH_TAG) in digests:
            store.client.set_logged_model_tags(model.model_id, {TAG: note})
    marked = []
    for version in registered_versions(store):
        if version.tags.get(HASH_TAG) in digests:
            store.client.set_model_version_tag(version.name, version.version, TAG, note)
            # A search leaves its aliases out.
            known = store.client.get_model_version(version.name, version.version).aliases
            alias = f" ({', '.join(known)})" if known else ""
            marked.append(f"{version.name} version {version.version}{alias}")
    return marked


def registered_versions(store: Store) -> Iterator[ModelVersion]:
    """All versions of all registered models."""
    token = None
    while True:
        page = store.client.search_model_versions(max_results=PAGE, page_token=token)
        yield from page
        if not (token := page.token):
            return


def logged_models(store: Store) -> Iterator[LoggedModel]:
    """All models that runs of the experiment have logged."""
    token = None
    while True:
        page = store.client.search_logged_models(
            [store.experiment], max_results=PAGE, page_token=token
        )
        yield from page
        if not (token := page.token):
            return
