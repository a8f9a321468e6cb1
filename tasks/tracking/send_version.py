"""Sends a version of a registered model to MLflow, with its description and cards."""

from collections.abc import Mapping

from tasks.tracking.registered import describe, ensure_version
from tasks.tracking.send import named_errors
from tasks.tracking.store import connect


def send_version(
    uri: str,
    logged: str,
    path: str,
    digest: str,
    *,
    description: str,
    cards: Mapping[str, str],
) -> None:
    """Register a logged model as a version, and give it its description and cards.

    Args:
        uri: of the tracking store.
        logged: id of the logged model.
        path: where the pipeline wrote it.
        digest: DVC's hash of it.
        description: of the version.
        cards: file name -> text.

    Raises:
        TrackingError: MLflow could not be reached, or refused it.
    """
    with named_errors():
        store = connect(uri)
        version = ensure_version(store, store.client.get_logged_model(logged), path, digest)
        describe(store, version, description, cards)
