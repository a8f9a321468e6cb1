"""Where a stage of the flow runs: here, or in a work pool of Prefect on another machine.

`RLHF_GPU_POOL` names the pool for stages that use the accelerator, `RLHF_CPU_POOL` that for the
others; without them the flow runs everything itself. Wherever a stage runs, its outputs are here
afterwards, and dvc.lock has the same entry.
"""

import os
from collections.abc import Callable
from pathlib import Path

from prefect import get_run_logger

from flows import remotes
from flows.graph import PlannedStage
from flows.remote_stage import WENT_WELL
from flows.stage_flow import run_there
from flows.stages import Ending, run_stage
from tasks.params.loading import ParamsError, load_params
from tasks.workspace.dvc_definition import DefinitionError
from tasks.workspace.dvc_graph import DvcBusyError, GraphError, need
from tasks.workspace.git import GitError
from tasks.workspace.orders import (
    Answer,
    Order,
    OrderError,
    adopt_entry,
    adopt_notes,
    forget_order,
    make_order,
    read_answer,
    send_order,
)
from tasks.workspace.stage_inputs import StageInputs, stage_inputs
from tasks.workspace.worktrees import WorkspaceError

GPU_POOL = "RLHF_GPU_POOL"
CPU_POOL = "RLHF_CPU_POOL"


def pool_of(planned: PlannedStage) -> str | None:
    """The work pool that a stage belongs to; None: the flow runs it itself."""
    return os.environ.get(GPU_POOL if planned.gpu else CPU_POOL) or None


def run_in_pool(
    stage: str, root: Path, pool: str, *, execution: str, is_cancelled: Callable[[], bool]
) -> Ending:
    """Bring one DVC stage up to date in a work pool; what can only be done here is done here.

    Args:
        stage: DVC's name of it.
        root: the workspace; what the stage reads is there.
        pool: Prefect's name of it.
        execution: id of the pipeline execution.
        is_cancelled: whether the stage is no longer wanted.
    """
    try:
        return _bring_up_to_date(stage, root, pool, execution, is_cancelled)
    except (ParamsError, DefinitionError, OrderError) as error:
        return Ending("bad_input", str(error))
    except (GraphError, DvcBusyError) as error:
        return Ending("refused", str(error))
    except (GitError, WorkspaceError) as error:
        # Of git's remote, which may be there the next time.
        return Ending("failed", str(error))


def _bring_up_to_date(
    stage: str, root: Path, pool: str, execution: str, is_cancelled: Callable[[], bool]
) -> Ending:
    logger = get_run_logger()
    inputs = stage_inputs(root, stage)
    wanted = need(root, stage)
    if wanted == "nothing":
        return Ending("unchanged")
    reason = reason_to_stay(root, stage, inputs)
    if wanted == "restoring" or reason:
        if reason:
            logger.info("%s runs here and not in the pool %s: %s", stage, pool, reason)
        return run_stage(stage, root, execution=execution, logger=logger, is_cancelled=is_cancelled)
    return _order(stage, root, pool, inputs, execution, is_cancelled)


def reason_to_stay(root: Path, stage: str, inputs: StageInputs) -> str:
    """Why a stage cannot run elsewhere; empty where it can."""
    if inputs.private:
        return f"it reads {', '.join(inputs.private)}, which git does not have"
    people = load_params(root / "params.yaml").label.annotators == "people"
    if stage.partition("@")[0] == "label" and people:
        return "what people have said is in this machine's store"
    return ""


def _order(
    stage: str,
    root: Path,
    pool: str,
    inputs: StageInputs,
    execution: str,
    is_cancelled: Callable[[], bool],
) -> Ending:
    """Push what the stage reads, have it run, and take in what comes back."""
    logger = get_run_logger()
    remote = remotes.git_remote(root)
    if remote is None or not remotes.dvc_remote(root):
        raise OrderError(
            f"the pool {pool} is reached by remotes of git and of DVC, and this repository lacks "
            "one; docs/how-to/several-machines.md sets them up"
        )
    if problem := remotes.absent_folder(root):
        raise OrderError(problem)
    order = make_order(root, stage)
    answer = read_answer(root, order, remote)
    if answer is None or answer.how not in WENT_WELL:
        push = ("push", "--quiet", *inputs.makers)
        if inputs.makers and remotes.dvc(root, execution, *push, logger=logger):
            return Ending("failed", f"`dvc push {' '.join(inputs.makers)}` failed")
        send_order(root, order, remote)
        ending = run_there(order, pool, execution, logger=logger, is_cancelled=is_cancelled)
        answer = read_answer(root, order, remote)
        if answer is not None:
            adopt_notes(root, order, answer)
        if ending.how not in WENT_WELL:
            return ending
    if answer is None:
        return Ending("failed", f"its flow run ended well, but {order.branch} has no answer")
    return _take_in(root, order, answer, remote, execution)


def _take_in(root: Path, order: Order, answer: Answer, remote: str, execution: str) -> Ending:
    """Make the workspace what it would be, had the stage run here."""
    logger = get_run_logger()
    lock = root / "dvc.lock"
    before = lock.read_bytes() if lock.exists() else None
    adopt_notes(root, order, answer)
    adopt_entry(root, order, answer)
    if remotes.dvc(root, execution, "pull", "--quiet", "--force", order.stage, logger=logger):
        if before is None:
            lock.unlink()
        else:
            draft = lock.with_name(f".{lock.name}.{os.getpid()}")
            draft.write_bytes(before)
            draft.replace(lock)
        return Ending("failed", f"`dvc pull {order.stage}` failed; the log says why")
    try:
        forget_order(root, order, remote)
    except WorkspaceError as error:
        logger.warning("the branch %s stays: %s", order.branch, error)
    return Ending("cached" if answer.how == "cached" else "ran")
