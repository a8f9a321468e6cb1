"""MLflow's registered models: a version for each policy and each reward model, by DVC's hash.

    rlhf-policy          SFT, and the policy of every round
    rlhf-reward-model    the reward model of every round

Equal bytes are one version, whichever run wrote them first.
"""

import json
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from tasks.tracking.registered_names import POLICY, REWARD_MODEL, registered_name, round_of
from tasks.tracking.runs import is_deleted
from tasks.tracking.store import Store
from tasks.tracking.withdrawn import HASH_TAG, registered_versions

BEFORE = "production.before"
"""Tag of the registered model: the versions that were in production, the newest last."""
SOURCE = "models:/"
"""Before the id of a logged model, in the source of a version."""
CARDS = "cards"
"""Folder of the cards among the artifacts of the run that made a model."""
DESCRIPTION = 5000
"""Most letters that MLflow's tables take as a description."""


def version_with(client: MlflowClient, name: str, digest: str) -> ModelVersion | None:
    """The version of a registered model with DVC's hash, the first where there are several."""
    found = client.search_model_versions(f"name = '{name}' and tags.`{HASH_TAG}` = '{digest}'")
    return min(found, key=lambda one: int(one.version), default=None)


def ensure_version(store: Store, model: LoggedModel, path: str, digest: str) -> ModelVersion:
    """The version of a logged model, created if there is none."""
    client, name = store.client, registered_name(path)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    if (known := version_with(client, name, digest)) is not None:
        return known
    return client.create_model_version(
        name,
        source=f"{SOURCE}{model.model_id}",
        run_id=model.source_run_id,
        model_id=model.model_id,
        tags={HASH_TAG: digest, "dvc.path": path, "rlhf.round": round_of(path)},
    )


def describe(store: Store, version: ModelVersion, summary: str, cards: Mapping[str, str]) -> None:
    """Give a version its description and its cards (file name -> text).

    Cards are artifacts of the run that made the model: without it there are none.
    """
    client, where = store.client, ""
    if not is_deleted(store, str(version.run_id)):
        folder = f"{CARDS}/{version.name}-{version.version}"
        for name, text in cards.items():
            client.log_text(str(version.run_id), text, f"{folder}/{name}")
        where = f"\n\nCards: artifacts `{folder}` of run {version.run_id}."
    shown = summary[: DESCRIPTION - len(where)] + where
    client.update_model_version(version.name, version.version, shown)


def needed_hashes(store: Store) -> set[str]:
    """DVC's hashes of the versions whose weights have to stay.

    Of our own, those with an alias and those that were in production, also where a rollback has
    taken them out of `production.before`; of other registered models, which somebody made by hand,
    all.
    """
    wanted = {(name, number) for name in (POLICY, REWARD_MODEL) for number in _used(store, name)}
    return {
        one.tags.get(HASH_TAG, "")
        for one in registered_versions(store)
        if one.name not in (POLICY, REWARD_MODEL)
        or (one.name, str(one.version)) in wanted
        or _was_approved(one)
    }


def _was_approved(version: ModelVersion) -> bool:
    decisions = (line for key, line in version.tags.items() if key.startswith("decision."))
    return any(json.loads(line)["decision"] == "approved" for line in decisions)


def _used(store: Store, name: str) -> set[str]:
    """Versions with an alias, and those that were in production."""
    try:
        model = store.client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return set()
    return {str(number) for number in model.aliases.values()} | set(
        model.tags.get(BEFORE, "").split()
    )
