"""A person decides whether the policy of a round replaces the one in production.

The flow compares the policy with the one in production (`tasks.promoting`), shows the metrics and
what the gate says, and suspends itself with a form: it needs no process while people decide.
*Resume* in the Prefect UI opens the form; the run restarts from the top with what was entered, and
records the decision (`tasks.tracking.promotion`). It promotes no policy that does not pass the
gate, unless the form says to override that.

The pipeline's flow orders a run after each new policy (`flows.promotion_request`), where the
deployment is served.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from mlflow.entities.model_registry import ModelVersion
from prefect import flow, get_run_logger, runtime, suspend_flow_run
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.input import RunInput
from prefect.states import Completed, Failed
from pydantic import Field

from flows.artifacts import artifact_key, round_rows
from flows.states import leave_out_what_the_state_says
from tasks.params.loading import ParamsError, load_params
from tasks.promoting.asking import ask, conclude
from tasks.promoting.gate import Limits, Verdict
from tasks.reporting.run_results import read_results
from tasks.tracking import promotion
from tasks.tracking.promotion import Candidate, Choice, PromotionError, policy_path
from tasks.tracking.registered_names import PATIENCE_SECONDS
from tasks.tracking.withdrawn import HASH_TAG
from tasks.workspace.dvc_lockfile import DamagedLockError, has_read, read_lock
from tasks.workspace.worktrees import RUNS_FOLDER

NAME = "promote"
SAID = r"\S"
"""More than blanks: a decision is recorded with a name and a reason."""
ASKED_AGAIN = (
    "If you have answered already: your answer has not been taken, since a policy, or what the "
    "gate refuses, has changed after you were asked. *Resume* shows the figures of now."
)
NOT_HERE = "not here"
"""Of the figures of a policy that another run has made."""


class Answer(RunInput):
    """The form."""

    decision: Choice
    who: Annotated[str, Field(pattern=SAID, max_length=200, description="Your name")]
    why: Annotated[str, Field(pattern=SAID, max_length=2000, description="Your reason")]
    override: Annotated[
        bool, Field(description="Approve a policy that does not pass the gate; this is recorded")
    ] = False


def name_of_this_run() -> str:
    """`promote-kl-010-r2` for round r2 of the run kl-010; `promote-r2` for one of the checkout."""
    given = runtime.flow_run.parameters
    return "-".join(filter(None, [NAME, run_in(Path(given["workspace"])), given["round_key"]]))


def run_in(workspace: Path) -> str:
    """Name of the ordered run that works in this folder; empty for any other folder."""
    ordered = workspace.parts[:-1][-len(RUNS_FOLDER.parts) :] == RUNS_FOLDER.parts
    return workspace.name if ordered else ""


@flow(
    name=NAME,
    flow_run_name=name_of_this_run,
    persist_result=False,
    description="A person approves or rejects the policy of a round.",
)
def promote(
    round_key: str,
    workspace: Path = Path(),
    policy: str | None = None,
    limits: Limits | None = None,
) -> State[None]:
    """Ask a person about the round's policy, and record what they say.

    Args:
        round_key: The round whose policy is meant, such as r1.
        workspace: Folder that has it: .work/runs/NAME for the run NAME, or the checkout.
        policy: DVC's hash of the policy, for whoever asks by program; the run ends as BadInput if
            there is another one by now. None: the one that is there.
        limits: Of the gate, for this decision; docs/how-to/promote.md says what they mean. None:
            the defaults.
    """
    leave_out_what_the_state_says()
    root = workspace.resolve()
    try:
        _refuse_if_changed(root, round_key, policy)
        candidate = promotion.candidate(root, round_key)
        params = load_params(root / "params.yaml")
        version = promotion.in_production(root)
        production = production_name(root, version, candidate)
        _require_measured(root, candidate)
        rows = before_and_after(read_results(root, params), round_key, production)
        verdict = ask(root, candidate, limits or Limits())
    except (ParamsError, PromotionError, DamagedLockError) as error:
        return Failed(name="BadInput", message=str(error))
    publish(round_key, rows, verdict)
    text = question(round_key, rows[-2:], verdict, run=run_in(root))
    answer = answer_to(text, key_of(verdict))
    who, why = answer.who.strip(), answer.why.strip()
    decision = promotion.Decision(choice=answer.decision, who=who, why=why)
    try:
        version = conclude(root, candidate, verdict, decision, override=answer.override)
    except PromotionError as error:
        return Failed(name="NotPromoted", message=str(error))
    return outcome(round_key, decision, version.version, version.tags.get("override", ""))


def publish(round_key: str, rows: list[dict[str, str]], verdict: Verdict) -> None:
    """The pages of the run: the metrics, and what the gate says."""
    create_table_artifact(
        table=rows,
        key=artifact_key(f"promotion-{round_key}"),
        description=f"Before and after round {round_key}",
    )
    create_markdown_artifact(verdict.table(), key=artifact_key(f"gate-{round_key}"))


def answer_to(text: str, key: str) -> Answer:
    """What a person has answered to the question of this key; suspends the run until then."""
    try:
        return suspend_flow_run(
            wait_for_input=Answer.with_initial_data(description=text),
            timeout=PATIENCE_SECONDS,
            key=key,
        )
    except Pause:
        if runtime.flow_run.run_count > 1:
            get_run_logger().warning(ASKED_AGAIN)
        raise


def key_of(verdict: Verdict) -> str:
    """The name of the question, under which Prefect keeps the answer.

    If either policy or what the gate refuses changes while people think, the run asks again instead
    of taking their word for something that they have not seen.
    """
    policies = (verdict.digest.removesuffix(".dir"), verdict.before_version or "sft")
    failed = hashlib.sha256("\n".join(verdict.failed).encode()).hexdigest()[:16]
    return "-".join(["verdict", *policies, failed])


def _require_measured(root: Path, chosen: Candidate) -> None:
    """Results beside a policy that was trained anew since are those of the one before it."""
    key, path = chosen.round_key, policy_path(chosen.round_key)
    if not has_read(read_lock(root), f"evaluate@{key}", path, chosen.digest):
        raise PromotionError(f"the policy of round {key} has not been evaluated yet")


def before_and_after(
    results: Mapping[str, Any], round_key: str, production: str | None
) -> list[dict[str, str]]:
    """SFT, the policy in production, and the round's: one row each, the new one last.

    Args:
        results: of the workspace that has the round.
        round_key: the round.
        production: from `production_name`; without figures where no row of `results` has it.

    Raises:
        PromotionError: the round has not been evaluated.
    """
    rows = {row["policy"]: row for row in round_rows(results)}
    if round_key not in rows:
        raise PromotionError(f"round {round_key} has not been evaluated yet")
    found = []
    if "sft" in rows:
        found.append({"": "start" if production else "before", **rows["sft"]})
    if production not in (None, "sft", round_key):
        unknown = dict.fromkeys(rows[round_key], NOT_HERE) | {"policy": production}
        found.append({"": "before", **rows.get(production, unknown)})
    return [*found, {"": "after", **rows[round_key]}]


def production_name(root: Path, version: ModelVersion | None, chosen: Candidate) -> str | None:
    """What the policy in production is called beside the candidate; None before any approval.

    The key of a round only where `evaluate` has measured this very policy in this workspace:
    another run may have a round of the same key.
    """
    if version is None:
        return None
    key, digest = str(version.tags.get("rlhf.round")), version.tags.get(HASH_TAG)
    if digest == chosen.digest:
        return chosen.round_key
    if digest and has_read(read_lock(root), f"evaluate@{key}", policy_path(key), digest):
        return key
    return f"version {version.version} (round {key} of another run)"


def question(round_key: str, rows: list[dict[str, str]], verdict: Verdict, *, run: str = "") -> str:
    """The text above the form: what is asked, what the gate says, and the metrics, one a line.

    The form shows four lines of it, and the others when it is scrolled.
    """
    table = [list(column) for column in zip(*(row.values() for row in rows), strict=True)]
    moments, policies, *metrics = table
    head = [f"{moment}: {policy}" for moment, policy in zip(moments, policies, strict=True)]
    names = list(rows[0])[2:]
    lines = [["", *head], ["---"] * (1 + len(rows))]
    lines += [[name, *values] for name, values in zip(names, metrics, strict=True)]
    whose = f"round {round_key} of the run {run}" if run else f"round {round_key}"
    return (
        f"**Shall the policy of {whose} replace the one in production?** {gate_words(verdict)} "
        f"All figures are below, and in the *Artifacts* of this run.\n\n{verdict.table()}\n\n"
        + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        + "\n\nHeld-out prompts, 95 % intervals. Approving moves MLflow's alias "
        f"`{promotion.ALIAS}` of `{promotion.MODEL}`; rejecting leaves it where it is."
    )


def gate_words(verdict: Verdict) -> str:
    """Whether the candidate may be promoted, and why not."""
    if verdict.failed:
        return (
            f"It **does not pass the gate**: {'; '.join(verdict.failed)}. Approving it is refused, "
            "unless *override* is chosen; that is recorded with your name and reason."
        )
    return "It passes the gate."


def outcome(
    round_key: str, decision: promotion.Decision, version: str | int, override: str
) -> State[None]:
    """The run's last state: what was decided, by whom and why, and in spite of what."""
    approved = decision.choice == "approve"
    in_spite = f" (in spite of {override})" if approved and override else ""
    return Completed(
        name="Promoted" if approved else "Rejected",
        message=f"round {round_key}, {promotion.MODEL} version {version}: "
        f"{'approved' if approved else 'rejected'} by {decision.who}: {decision.why}{in_spite}",
    )


def _refuse_if_changed(root: Path, round_key: str, policy: str | None) -> None:
    if not root.is_dir():
        again = f"a run that is ordered as {run} brings it back" if (run := run_in(root)) else ""
        raise PromotionError(f"{root}: no such folder{again and f'; {again}, then ask again'}")
    if not (root / "dvc.yaml").exists():
        expected = "the checkout, or .work/runs/NAME of the run NAME"
        raise PromotionError(f"workspace: expected {expected}; {root} has no dvc.yaml")
    now = promotion.policy_digest(root, round_key)
    if policy not in (None, now):
        raise PromotionError(
            f"the policy of round {round_key} has changed since this was asked ({policy}, now "
            f"{now}); the run that made the new one asks again"
        )
