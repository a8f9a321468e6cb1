"""Puts a round's policy to the gate, and keeps what was measured until somebody has decided.

A verdict lies in `.work/promotion`, so that a form that was filled in days later shows the same
figures. It is of one candidate against one version in production, with these params, data and
limits; if any of them changes, both policies are measured again.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from mlflow.entities.model_registry import ModelVersion

from preferences.withdrawals import WithdrawalsError
from tasks.params.loading import load_params, section
from tasks.promoting.gate import Limits, Verdict
from tasks.promoting.measuring import VERDICT, Task
from tasks.tracing.contents import Contents
from tasks.tracking import promotion
from tasks.tracking.production_weights import mlflow_folder, workspace_folder
from tasks.tracking.promotion import Candidate, Decision, PromotionError, policy_path
from tasks.tracking.registered_names import VERDICTS
from tasks.tracking.withdrawn import HASH_TAG
from tasks.workspace.dvc_cache import cache_folder, is_cached, output_hash
from tasks.workspace.dvc_lockfile import read_lock
from tasks.workspace.held import held
from tasks.workspace.withdrawn import outputs_withdrawn

FOLDER = VERDICTS
CODE = Path(__file__).resolve().parents[2]
SFT = "models/sft"
PREPARED = "data/prepared"
MEASURED_WITH = ("run", "label", "reward", "ppo", "evaluate")


def ask(root: Path, chosen: Candidate, limits: Limits) -> Verdict:
    """What the gate says about the candidate, measured in a process of its own where it is new.

    From now on the candidate is `challenger`.

    Raises:
        ParamsError: params.yaml is wrong.
        PromotionError: the two policies cannot be compared, the candidate is in production, or
            params.yaml no longer has the round.
    """
    rounds = load_params(root / "params.yaml").rounds
    if chosen.round_key not in rounds:
        raise PromotionError(
            f"round {chosen.round_key} is not among the rounds of params.yaml ({', '.join(rounds)})"
        )
    now = promotion.in_production(root)
    if now is not None and now.tags.get(HASH_TAG) == chosen.digest:
        raise PromotionError(
            f"round {chosen.round_key} is in production already, as version {now.version}; there "
            "is nothing to compare it with"
        )
    task = _task(root, chosen, now, limits)
    kept = root / FOLDER / f"{_key(root, task)}.json"
    if not kept.is_file():
        with weights_at(root, task.before, now):
            _measure(root, task, kept)
    promotion.challenge(root, chosen)
    return VERDICT.validate_json(kept.read_bytes())


def conclude(
    root: Path, chosen: Candidate, verdict: Verdict, decision: Decision, *, override: bool
) -> ModelVersion:
    """Record what a person decided, and promote the candidate if it may be.

    Raises:
        PromotionError: it failed and nobody overrides that, or since it was compared something
            else has gone into production, or something that it learnt from was withdrawn.
    """
    if decision.choice == "approve":
        now = promotion.in_production(root)
        if (None if now is None else str(now.version)) != verdict.before_version:
            raise PromotionError(
                f"round {verdict.round_key} was compared with {verdict.before}, and something else "
                "has gone into production since; ask again"
            )
        note = promotion.withdrawn(root, chosen)
        if note is not None and not verdict.tells_of_withdrawn_data:
            raise PromotionError(
                f"something that round {verdict.round_key} learnt from was withdrawn since it was "
                f"compared ({note}); ask again"
            )
        if verdict.failed and not override:
            raise PromotionError(
                f"round {verdict.round_key} does not pass the gate. {'; '.join(verdict.failed)}"
            )
        decision = replace(decision, override=verdict.failed)
    said = VERDICT.dump_json(verdict, indent=1).decode()
    return promotion.decide(root, chosen, decision, said)


def _task(root: Path, chosen: Candidate, now: ModelVersion | None, limits: Limits) -> Task:
    key, path = chosen.round_key, policy_path(chosen.round_key)
    lock = read_lock(root)
    recorded = {path: digest for stage in lock.values() for path, digest in stage.outs.items()}
    for needed in (path, SFT, PREPARED, f"models/rounds/{key}/reward", f"results/reward/{key}"):
        if needed in recorded and output_hash(root / needed) != recorded[needed]:
            get = (
                f"`dvc checkout --force {needed}` restores it, or `dvc pull {needed}` where the "
                "cache lacks it"
            )
            if recorded[needed] in _outputs_withdrawn(root):
                get = "something was withdrawn from it; run the pipeline, then ask again"
            raise PromotionError(f"{root / needed} is not what dvc.lock records; {get}")
    before = SFT if now is None else folder_of(root, now).as_posix()
    return Task(
        round_key=key,
        digest=chosen.digest,
        candidate=path,
        before=before,
        before_is="SFT"
        if now is None
        else f"version {now.version} in production (round {now.tags.get('rlhf.round')})",
        before_version=None if now is None else str(now.version),
        withdrawn=promotion.withdrawn(root, chosen),
        limits=limits,
    )


def _outputs_withdrawn(root: Path) -> set[str]:
    try:
        return outputs_withdrawn(root)
    except WithdrawalsError as error:
        raise PromotionError(str(error)) from None


def folder_of(root: Path, version: ModelVersion) -> Path:
    """Where the weights of the version in production are, or will be while they are needed.

    Those of this workspace; else a copy of what DVC's cache has; else MLflow's own.

    Raises:
        PromotionError: they are not on this machine.
    """
    if (here := workspace_folder(root, version)) is not None:
        return here
    digest = version.tags.get(HASH_TAG, "")
    if is_cached(cache_folder(root), digest):
        return root / FOLDER / digest.removesuffix(".dir")
    return mlflow_folder(root, version)


@contextmanager
def weights_at(root: Path, folder: str, version: ModelVersion | None) -> Iterator[None]:
    """Copy a version's weights from DVC's cache to where `folder_of` says, for as long as needed.

    Does nothing where they are there anyway.
    """
    copy = Path(folder)
    if version is None or copy.parent != root / FOLDER:
        yield
        return
    contents, digest = Contents(root), version.tags[HASH_TAG]
    copy.parent.mkdir(parents=True, exist_ok=True)
    # Another round may be put to the gate now: whoever came first would take the copy away.
    with held(copy.with_suffix(".lock")):
        try:
            for name, md5 in contents.files("", digest).items():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(contents.file("", md5), copy / name)
            yield
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _key(root: Path, task: Task) -> str:
    params = load_params(root / "params.yaml")
    lock = read_lock(root).get("prepare")
    parts = [
        asdict(task),
        {name: section(params, name) for name in MEASURED_WITH},
        dict(lock.outs) if lock else {},
    ]
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{task.round_key}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _measure(root: Path, task: Task, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    # -P: the modules of this code, though the workspace may hold those of another revision.
    command = [sys.executable, "-P", "-m", "tasks.promoting.measuring", str(kept)]
    done = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(CODE)},
        input=json.dumps(asdict(task)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PromotionError(f"round {task.round_key} cannot be compared: {lines[-1]}")
