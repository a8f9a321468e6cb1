"""Promotion: the alias `production` in MLflow points to the policy that people approved last.

Every decision creates a version of the registered model `rlhf-policy` whose tags say who decided,
when and why. Approval moves the alias to it; a rejected version is kept without the alias.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.tracking.store import Store, connect, logged_files
from tasks.workspace.dvc_lockfile import read_lock

MODEL = "rlhf-policy"
ALIAS = "production"
SOURCE = "models:/"
"""Before the id of a logged model, in the source of a version."""

Choice = Literal["approve", "reject"]


class PromotionError(Exception):
    """There is nothing to decide on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person has decided, in their words."""

    choice: Choice
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The policy of a round, as MLflow has it."""

    round_key: str
    digest: str
    """DVC's hash of the model folder."""
    model: LoggedModel


def policy_digest(root: Path, round_key: str) -> str:
    """DVC's hash of the policy that the round has trained.

    Raises:
        PromotionError: the round has not trained one yet.
    """
    stage = read_lock(root).get(f"ppo@{round_key}")
    path = _policy_path(round_key)
    if stage is None or path not in stage.outs:
        raise PromotionError(f"round {round_key} has no policy yet: ppo@{round_key} has not run")
    return stage.outs[path]


def candidate(root: Path, round_key: str) -> Candidate:
    """The round's policy, found in MLflow by its hash.

    Raises:
        PromotionError: the round has trained none, or MLflow does not have it.
    """
    digest = policy_digest(root, round_key)
    store = _store(root)
    found = store.client.search_logged_models(
        [store.experiment], filter_string=f"tags.`dvc.md5` = '{digest}'", max_results=1
    )
    if not found:
        raise PromotionError(
            f"MLflow has no model with the hash {digest} of {_policy_path(round_key)}; "
            "`make sync` sends what is missing"
        )
    return Candidate(round_key=round_key, digest=digest, model=found[0])


def in_production(root: Path) -> ModelVersion | None:
    """The version that `production` points to; None before the first approval."""
    try:
        return _store(root).client.get_model_version_by_alias(MODEL, ALIAS)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def production_folder(root: Path) -> tuple[Path, str] | None:
    """The model folder of `production` on this disk, and which version and round it is.

    None before the first approval, or where its weights are neither here nor in a local store.
    """
    if (version := in_production(root)) is None:
        return None
    round_key = str(version.tags.get("rlhf.round"))
    about = f"production, version {version.version}, round {round_key}"
    here = root / _policy_path(round_key)
    stage = read_lock(root).get(f"ppo@{round_key}")
    if (
        stage is not None
        and stage.outs.get(_policy_path(round_key)) == version.tags.get("dvc.md5")
        and here.is_dir()
    ):
        return here, about
    # The registry keeps the model's id only in the source that `decide` gives.
    kept = logged_files(_store(root), str(version.source).removeprefix(SOURCE))
    return (kept, about) if kept is not None and kept.is_dir() else None


def decide(root: Path, chosen: Candidate, decision: Decision) -> ModelVersion:
    """Record the decision as a version of the registered model; approval makes it `production`.

    The same decision by the same person on the same policy is recorded once.
    """
    client = _store(root).client
    tags = {
        "dvc.md5": chosen.digest,
        "rlhf.round": chosen.round_key,
        "decision": "approved" if decision.choice == "approve" else "rejected",
        "decided_by": decision.who,
        "reason": decision.why,
    }
    version = _recorded(root, tags)
    if version is None:
        version = client.create_model_version(
            MODEL,
            source=f"{SOURCE}{chosen.model.model_id}",
            run_id=chosen.model.source_run_id,
            model_id=chosen.model.model_id,
            tags={**tags, "decided_at": datetime.now(tz=UTC).isoformat(timespec="seconds")},
        )
    if decision.choice == "approve":
        client.set_registered_model_alias(MODEL, ALIAS, version.version)
    return version


def _recorded(root: Path, tags: dict[str, str]) -> ModelVersion | None:
    """The newest decision on this policy if it equals this one: a retry, or a double click."""
    client = _store(root).client
    try:
        client.create_registered_model(MODEL)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{MODEL}'")
    same = [one for one in versions if one.tags.get("dvc.md5") == tags["dvc.md5"]]
    newest = max(same, key=lambda one: int(one.version), default=None)
    if newest is None or any(newest.tags.get(key) != value for key, value in tags.items()):
        return None
    return newest


def _policy_path(round_key: str) -> str:
    return f"models/rounds/{round_key}/policy"


def _store(root: Path) -> Store:
    quiet_mlflow()
    return connect(tracking_uri(root))
