"""Promotion: the alias `production` in MLflow points to the policy that people approved last.

Every decision is recorded on the version of the policy: the newest in tags of its own (`decision`,
`decided_by`, `reason`, `decided_at`, `override`), all of them in `decision.1`, `decision.2`, and so
on, also on the run that trained the policy. What was in production before is noted on the
registered model, so that `rollback` can restore it. `challenger` is the policy about which people
were asked last and have not decided.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from preferences.withdrawals import WithdrawalsError
from tasks.tracking.registered import BEFORE, SOURCE, ensure_version
from tasks.tracking.registered_names import POLICY
from tasks.tracking.runs import is_deleted
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.tracking.store import Store, connect, logged_files
from tasks.tracking.withdrawn import HASH_TAG, TAG
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.withdrawn import NOTE, models_withdrawn

MODEL = POLICY
ALIAS = "production"
CHALLENGER = "challenger"
RUN_TAG = 8000
"""Most letters of a run's tag."""
LONGEST = 2000
"""Most letters of a name and of a reason: both go into one such tag."""
MOST = 1000
"""Versions that are remembered as having been in production."""

Choice = Literal["approve", "reject"]


class PromotionError(Exception):
    """There is nothing to decide on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person has decided, in their words."""

    choice: Choice
    who: str
    why: str
    override: tuple[str, ...] = ()
    """What the candidate failed, where it is approved in spite of it."""


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
    path = policy_path(round_key)
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
            f"MLflow has no model with the hash {digest} of {policy_path(round_key)}; "
            "`make sync` sends what waits here; a run that was made elsewhere is in that "
            "place's MLflow (MLFLOW_TRACKING_URI)"
        )
    return Candidate(round_key=round_key, digest=digest, model=found[0])


def withdrawn(root: Path, chosen: Candidate) -> str | None:
    """The note on data that the policy learnt from and that was withdrawn since, as of now.

    Raises:
        PromotionError: the log of withdrawals is damaged.
    """
    model = _store(root).client.get_logged_model(chosen.model.model_id)
    return _withdrawn(root, model.tags, chosen.digest)


def note_of(root: Path, version: ModelVersion) -> str | None:
    """As `withdrawn`, of a version."""
    return _withdrawn(root, version.tags, version.tags.get(HASH_TAG, ""))


def in_production(root: Path) -> ModelVersion | None:
    """The version that `production` points to; None before the first approval."""
    return with_alias(root, ALIAS)


def with_alias(root: Path, alias: str) -> ModelVersion | None:
    """The version that an alias of the registered model points to, None without one."""
    return _with_alias(_store(root).client, alias)


def kept_by_mlflow(root: Path, version: ModelVersion) -> Path | None:
    """Where MLflow keeps the weights of a version on this disk; None where it does not."""
    # The registry keeps the model's id only in the source that `ensure_version` gives.
    model = str(version.source).removeprefix(SOURCE)
    try:
        kept = logged_files(_store(root), model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None  # Somebody has deleted it.
    return kept if kept is not None and kept.is_dir() else None


def challenge(root: Path, chosen: Candidate) -> ModelVersion:
    """Make the candidate `challenger`: people are asked about it."""
    store = _store(root)
    version = _version(store, chosen)
    store.client.set_registered_model_alias(MODEL, CHALLENGER, version.version)
    return version


def unfit(who: str, why: str) -> str | None:
    """What keeps a name or a reason from being recorded, in words."""
    for name, text in (("who", who), ("why", why)):
        if len(text) > LONGEST:
            return f"{name}: expected at most {LONGEST:,} letters, found {len(text):,}"
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{name}: expected UTF-8, found {text!a}"
    return None


def decide(root: Path, chosen: Candidate, decision: Decision, verdict: str = "") -> ModelVersion:
    """Record the decision on the policy's version; approval makes it `production`.

    The same decision by the same person on the same policy, one after the other, is recorded once;
    again where another policy was in production meanwhile.
    The gate's verdict goes along as an artifact of the run that trained the policy, if it is there.

    Raises:
        PromotionError: the name or the reason cannot be recorded; nothing is.
    """
    if problem := unfit(decision.who, decision.why):
        raise PromotionError(problem)
    store = _store(root)
    client, version = store.client, _version(store, chosen)
    tags = {
        "decision": "approved" if decision.choice == "approve" else "rejected",
        "decided_by": decision.who,
        "reason": decision.why,
        "override": "; ".join(decision.override),
    }
    approved = decision.choice == "approve"
    said_before = all(version.tags.get(key) == value for key, value in tags.items())
    if not said_before or (approved and _was_replaced(client, version)):
        _record(store, version, tags, verdict)
    if approved:
        _promote(client, version)
    waits = _with_alias(client, CHALLENGER)
    if waits is not None and waits.version == version.version:
        client.delete_registered_model_alias(MODEL, CHALLENGER)
    return client.get_model_version(MODEL, version.version)


def rollback(root: Path, *, who: str, why: str) -> tuple[ModelVersion, ModelVersion]:
    """Put into production what was there before; returns the version that left, and that one.

    Raises:
        PromotionError: nothing was there before, or it contains data that was withdrawn since, or
            the name or the reason cannot be recorded; or it was put there, and not all recorded.
    """
    if problem := unfit(who, why):
        raise PromotionError(problem)
    client = (store := _store(root)).client
    now = _with_alias(client, ALIAS)
    if now is None:
        raise PromotionError("no policy is in production; nothing can be rolled back")
    # The newest may be the one in production: a promotion or a rollback that was cut off.
    before = client.get_registered_model(MODEL).tags.get(BEFORE, "").split()
    while before and before[-1] == str(now.version):
        before.pop()
    if not before:
        raise PromotionError(
            f"version {now.version} was the first in production; nothing was there before it"
        )
    target = client.get_model_version(MODEL, before[-1])
    if (note := note_of(root, target)) is not None:
        raise PromotionError(
            f"version {target.version}, which was in production before, contains data that was "
            f"withdrawn since ({note}); promote another policy"
        )
    client.set_registered_model_alias(MODEL, ALIAS, target.version)
    said = {"decided_by": who, "reason": why, "override": ""}
    try:
        client.set_registered_model_tag(MODEL, BEFORE, " ".join(before[:-1]))
        _record(store, now, {"decision": f"rolled back to version {target.version}", **said})
        _record(store, target, {"decision": f"restored from version {now.version}", **said})
    except MlflowException as error:
        raise PromotionError(
            f"version {target.version} is in production again, instead of version {now.version}, "
            f"but that could not all be recorded ({error}); another rollback would go one further"
        ) from None
    return now, client.get_model_version(MODEL, target.version)


def policy_path(round_key: str) -> str:
    """Where the pipeline writes the policy of a round."""
    return f"models/rounds/{round_key}/policy"


def _promote(client: MlflowClient, version: ModelVersion) -> None:
    now = _with_alias(client, ALIAS)
    if now is not None and now.version == version.version:
        return
    if now is not None:
        before = client.get_registered_model(MODEL).tags.get(BEFORE, "").split()
        kept = [*before, str(now.version)][-MOST:]
        client.set_registered_model_tag(MODEL, BEFORE, " ".join(kept))
    client.set_registered_model_alias(MODEL, ALIAS, version.version)


def _was_replaced(client: MlflowClient, version: ModelVersion) -> bool:
    """Whether it was in production and another is now: to approve it again is a new decision."""
    now = _with_alias(client, ALIAS)
    before = client.get_registered_model(MODEL).tags.get(BEFORE, "").split()
    return now is not None and now.version != version.version and str(version.version) in before


def _record(store: Store, version: ModelVersion, tags: dict[str, str], verdict: str = "") -> None:
    """Note what was decided on the version, and on the run that trained it if that is there."""
    client = store.client
    tags = {**tags, "decided_at": datetime.now(tz=UTC).isoformat(timespec="seconds")}
    number = 1 + sum(key.startswith("decision.") for key in version.tags)
    line = json.dumps({"version": version.version, **tags}, ensure_ascii=False)
    run = version.run_id if version.run_id and not is_deleted(store, version.run_id) else ""
    # First: a decision that is on the version already is not recorded again.
    if run and verdict:
        name = f"promotion/version-{version.version}-decision-{number}.json"
        client.log_text(run, verdict, name)
    if run:
        client.set_tag(run, f"decision.{number}", line[:RUN_TAG])
    for key, value in {f"decision.{number}": line, **tags}.items():
        client.set_model_version_tag(MODEL, version.version, key, value)


def _withdrawn(root: Path, tags: Mapping[str, str], digest: str) -> str | None:
    if (note := tags.get(TAG)) is not None:
        return str(note)
    try:
        # MLflow may have got the model, or been made anew, since the data were withdrawn.
        return NOTE if digest in models_withdrawn(root) else None
    except WithdrawalsError as error:
        raise PromotionError(str(error)) from None


def _version(store: Store, chosen: Candidate) -> ModelVersion:
    return ensure_version(store, chosen.model, policy_path(chosen.round_key), chosen.digest)


def _with_alias(client: MlflowClient, alias: str) -> ModelVersion | None:
    missing = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
    try:
        return client.get_model_version_by_alias(MODEL, alias)
    except MlflowException as error:
        if error.error_code in missing:
            return None
        raise


def _store(root: Path) -> Store:
    quiet_mlflow()
    return connect(tracking_uri(root))
