"""`python -m flows.remote_stage STAGE --revision COMMIT`: a stage that another machine has ordered.

Works in a clone that has git, this environment, DVC's remote and MLflow's address, nothing else:
pulls what the stage reads, runs it in a workspace of its own (`.work/stages`), pushes what it made,
and answers with a commit (`tasks.workspace.orders`). Needs no Prefect server; in a work pool,
`flows.stage_flow` calls the same.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows import remotes
from flows.environment import environment
from flows.stages import HOW_BY_EXIT_CODE, Ending, run_stage
from tasks.params.loading import ParamsError
from tasks.running.provenance import wrong_entries
from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.shipper import Shipper
from tasks.workspace.driver_lock import BUSY_EXIT_CODE, Driver, WorkspaceBusyError
from tasks.workspace.dvc_definition import DefinitionError
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.git import GitError
from tasks.workspace.orders import (
    Answer,
    Order,
    OrderError,
    close_order,
    order_workspace,
    read_answer,
    send_answer,
)
from tasks.workspace.stage_inputs import stage_inputs
from tasks.workspace.worktrees import RevisionError, WorkspaceError, find_commit

WENT_WELL = ("ran", "unchanged", "cached")
MAY_RESUME = ("failed", "killed", "refused")
"""Endings after which the workspace stays, with its checkpoints."""
SHIPPING_SECONDS = 60.0
INTERRUPTED_SHIPPING_SECONDS = 3.0

Logger = logging.Logger | logging.LoggerAdapter[Any]


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.remote_stage",
        description="Run one stage of a commit in this clone: pull what it reads, push what it "
        "made, and push its entry of dvc.lock as a commit on the branch stages/STAGE-COMMIT.",
        epilog="Exit codes: 0 done, 2 bad input, 3 training stopped itself, 4 the data gate "
        "or a probe of the reward model blocked, 5 waiting for people, 7 this clone works on the "
        "same order already, 1 anything else.",
    )
    parser.add_argument("stage", help="as DVC names it, such as sft or ppo@r1")
    parser.add_argument("--revision", required=True, metavar="COMMIT", help="an order, or any "
                        "branch, tag or commit whose data are in DVC's remote")  # fmt: skip
    parser.add_argument("--execution", default="", metavar="ID", help="of the pipeline in MLflow")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # Slurm and others give notice by it; the stage writes a checkpoint before we go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        ending = serve_order(
            Path.cwd(), given.stage, given.revision, given.execution,
            logger=logging.getLogger("flows.remote_stage"),
        )  # fmt: skip
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE
    except KeyboardInterrupt:
        return 130
    if ending.how in WENT_WELL:
        sys.stdout.write(f"{given.stage}: {ending.how}. {ending.message}\n")
        return 0
    sys.stderr.write(f"{given.stage}: {ending.message}\n")
    return next((code for code, how in HOW_BY_EXIT_CODE.items() if how == ending.how), 1)


def serve_order(
    clone: Path, stage: str, revision: str, execution: str, *, logger: Logger
) -> Ending:
    """Run a stage as a commit has it, in `clone`, and answer; call it in the main thread.

    An order that has been answered well is not run again. A stage that was interrupted keeps its
    workspace, and the next call for the same order resumes from its checkpoint.

    Args:
        clone: the repository on this machine.
        stage: DVC's name of it.
        revision: an order, or any branch, tag or commit.
        execution: id of the pipeline execution; empty: one of its own.
        logger: gets each line that DVC and the stage write.

    Raises:
        WorkspaceBusyError: another process works on the same order here.
    """
    os.environ.update(environment(clone))
    try:
        remote = _remotes(clone)
        order = Order(stage, find_commit(clone, revision, remote))
        if (known := read_answer(clone, order, remote)) is not None and known.how in WENT_WELL:
            return Ending("unchanged", f"It was answered before: {order.branch}")
        me = Driver(name=f"python -m flows.remote_stage {stage} --revision {order.commit[:12]}")
        with order_workspace(clone, order, me) as workspace:
            id_ = execution or f"stage-{order.commit[:12]}"
            ending, arrived = _run(workspace, stage, id_, logger)
            send_answer(workspace, order, Answer(ending.how, ending.message), remote)
            if ending.how not in MAY_RESUME and arrived:
                close_order(clone, workspace)
        if ending.how in WENT_WELL:
            return Ending(ending.how, f"Its entry of dvc.lock is on the branch {order.branch}")
        return ending
    except (DefinitionError, ParamsError, RevisionError) as error:
        return Ending("bad_input", str(error))
    except (OrderError, WorkspaceError, GitError) as error:
        return Ending("failed", str(error))


def _remotes(clone: Path) -> str:
    """Git's remote.

    Raises:
        OrderError: it or DVC's is missing.
    """
    if not remotes.dvc_remote(clone):
        raise OrderError(
            f"{clone}: DVC has no default remote; `dvc remote add --default NAME ADDRESS` names one"
        )
    if (remote := remotes.git_remote(clone)) is None:
        raise OrderError(f"{clone}: git has no remote, or several and no remote.pushDefault")
    return remote


def _run(workspace: Path, stage: str, execution: str, logger: Logger) -> tuple[Ending, bool]:
    """Pull, run, push; how it ended, and whether MLflow has all of it."""
    for problem in clear_stale(workspace):
        logger.warning("%s; removed", problem)
    inputs = stage_inputs(workspace, stage)
    # A path outside of the repository may be the same disk here.
    if missing := [path for path in inputs.private if not (workspace / path).exists()]:
        message = f"it reads {', '.join(missing)}, which neither git nor dvc.lock has"
        return Ending("bad_input", message), True
    pull = ("pull", "--quiet", *inputs.outputs)
    if inputs.outputs and remotes.dvc(workspace, execution, *pull, logger=logger):
        return _failed_transfer("pull", inputs.outputs), True
    with _shipping(workspace) as delivered:
        ending = run_stage(stage, workspace, execution=execution, logger=logger)
        if ending.how in WENT_WELL:
            ending = _push(workspace, stage, execution, ending, logger)
    return ending, delivered[0]


def _push(workspace: Path, stage: str, execution: str, ending: Ending, logger: Logger) -> Ending:
    """Push what the stage made, unless dvc.lock is wrong about it."""
    if wrong := wrong_entries(workspace):
        return Ending("failed", wrong)
    if remotes.dvc(workspace, execution, "push", "--quiet", stage, logger=logger):
        return _failed_transfer("push", (stage,))
    return ending


def _failed_transfer(verb: str, what: tuple[str, ...]) -> Ending:
    return Ending("failed", f"`dvc {verb} {' '.join(what)}` failed; the log says why")


@contextmanager
def _shipping(workspace: Path) -> Iterator[list[bool]]:
    """Send metrics to MLflow beside the work; afterwards the list says whether all arrived."""
    shipper, patience = Shipper(workspace), INTERRUPTED_SHIPPING_SECONDS
    delivered = [False]
    try:
        yield delivered
        patience = SHIPPING_SECONDS
    finally:
        delivered[0] = shipper.close(patience)
        if delivered[0]:
            tag_outputs(workspace)


if __name__ == "__main__":
    sys.exit(main())
