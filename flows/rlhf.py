"""The pipeline as a Prefect flow: plan the graph, run each stage, sum up each round.

DVC remembers what is done, Prefect conducts: DVC is asked once which stages are stale, and for
those a task is `dvc repro --single-item STAGE`. So the flow can be started again at any time (by a
person, a schedule or an event), and continues where the last run of it ended.

`python -m flows.local` runs it in one process, without a Prefect server.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Task, flow, get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed, Failed

from flows import promotion_request
from flows.artifacts import left_out_while_away, publish_results, publish_runs, publish_stage
from flows.cancelled import is_cancelled, unless_cancelled
from flows.crashed import report_crash
from flows.forking import forks
from flows.graph import PlannedStage, plan, plan_line
from flows.placing import pool_of, run_in_pool
from flows.recording import recorded
from flows.run_branch import RunBranch
from flows.stages import Ending, run_stage
from flows.states import task_state
from tasks.own_data.preflight import check_inputs
from tasks.params.loading import Params, ParamsError, load_params
from tasks.reporting.descent import formed_in
from tasks.reporting.run_results import read_results
from tasks.reporting.summary import has_worked
from tasks.running.outcome import require_sound_outcomes
from tasks.running.provenance import REMEDY, wrong_entries
from tasks.tracking.execution_record import record_rounds
from tasks.tracking.run_names import run_name
from tasks.workspace.driver_lock import Driver, WorkspaceBusyError, sole_use
from tasks.workspace.dvc_graph import DvcBusyError, GraphError, changes, in_words
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.files import DamagedNoteError
from tasks.workspace.former_rounds import put_away_former_rounds

WENT_THROUGH = {"Completed", "Unchanged", "Cached"}
WORTH_A_RETRY = {"Failed", "Killed"}
"""A crash or a lack of memory may not come twice, and the stage resumes from its checkpoint.
What a stage says of its input, of the data or of the training will be the same the second time."""


def name_of_this_run() -> str:
    """What the run differs in, and its commit, such as `kl 0.10, 2 rounds, 6cb38ae`."""
    root = Path(runtime.flow_run.parameters["workspace"]).resolve()
    try:
        return run_name(root, load_params(root / "params.yaml"))
    except ParamsError:
        return "params.yaml is not valid"


@flow(
    name="rlhf",
    flow_run_name=name_of_this_run,
    persist_result=False,
    description="SFT, then rounds of feedback and PPO.",
)
def rlhf(workspace: Path = Path()) -> State[None]:
    """Bring the pipeline in `workspace` up to date; the state says how far it came and why."""
    root = workspace.resolve()
    flow_run = str(runtime.flow_run.id)
    me = Driver(name=f"flow run {runtime.flow_run.name}", flow_run=flow_run)
    try:
        params = load_params(root / "params.yaml")
        check_inputs(params, root)
        with sole_use(root, me) as died_in_here:
            for died in died_in_here:
                report_crash(died)
            put_away_former_rounds(root, params.rounds)
            return bring_up_to_date(root, flow_run, params)
    except (ParamsError, GraphError, DamagedLockError, DamagedNoteError) as error:
        return Failed(name="BadInput", message=str(error))
    except (WorkspaceBusyError, DvcBusyError) as error:
        return Failed(name="Busy", message=str(error))


def bring_up_to_date(
    root: Path,
    flow_run: str,
    params: Params,
    *,
    until: str | None = None,
    branch: RunBranch | None = None,
) -> State[None]:
    """Plan, run what is stale, ship the metrics, and look whether anything changed meanwhile.

    Args:
        root: the workspace.
        flow_run: Prefect's id.
        params: those of the workspace.
        until: the last stage that is wanted; None: all.
        branch: keeps what each round has done; None: nobody but the user commits here.

    Raises:
        DamagedNoteError: how a stage ended cannot be read.
    """
    require_sound_outcomes(root)
    for problem in clear_stale(root):
        get_run_logger().warning("%s; removed", problem)
    stages = plan(root, until)
    with recorded(root, flow_run, params) as states:
        with forks(stages, root, flow_run):
            state, went_through = run_all(stages, root, flow_run, params, branch)
        state = as_it_is_now(state, root, went_through)
        states.append(state)
    of_a_sweep = runtime.flow_run.parent_flow_run_id is not None
    if not of_a_sweep and state.is_completed() and state.name != "Stale":
        with left_out_while_away("the question of promotion"):
            ask_for_promotion(root, params)
    return state


def run_all(
    stages: list[PlannedStage],
    root: Path,
    execution: str,
    params: Params,
    branch: RunBranch | None,
) -> tuple[State[None], list[str]]:
    """Run the stages in order up to the first that does not go through.

    One after the other, also where the graph would allow two at once: there is one accelerator.

    Returns:
        The flow's state, and the names of the stages that have run.
    """
    get_run_logger().info("%s", plan_line(stages))
    went_through: list[str] = []
    ended: list[str] = []
    for planned in stages:
        pool = pool_of(planned)
        state = stage(
            planned.name, root, execution, stale=planned.stale, pool=pool, return_state=True
        )
        publish_stage(root, planned.name, state.name or "", state.message or "")
        state = unless_cancelled(state)
        if state.name not in WENT_THROUGH:
            if ended and has_worked(root, execution):
                record_rounds(root, execution, ended, params.final, read_results(root, params))
            message = f"{planned.name}: {state.message or 'gave no reason'}"
            return State(type=state.type, name=state.name, message=message), went_through
        went_through.append(planned.name)
        if planned.ends_round and planned.round is not None:
            results = read_results(root, params)
            ended.append(planned.round)
            if has_worked(root, execution):
                record_rounds(root, execution, ended, params.final, results)
            publish_results(results, planned.round)
            publish_runs(root, execution)
            if branch is not None:
                branch.end_round(planned.round, went_through, results)
    if branch is not None:
        branch.end(went_through, read_results(root, params))
    return Completed(message=f"All {len(stages)} stages are up to date."), went_through


def as_it_is_now(state: State[None], root: Path, went_through: list[str]) -> State[None]:
    """`state`, unless stages that have run are stale by now, or dvc.lock is wrong about some."""
    try:
        found = {name: why for name, why in changes(root).items() if name in went_through}
        meanwhile = f"became stale while the flow ran: {in_words(found)}" if found else ""
    except (GraphError, DvcBusyError) as error:
        meanwhile = f"cannot be compared with the files as they are now: {error}"
    problems = [f"{meanwhile}. Run again."] if meanwhile else []
    besides = [f"Stages that went through {meanwhile}."] if meanwhile else []
    # Where a stage has ended the flow because of them, its message names them already.
    if (wrong := wrong_entries(root)) and REMEDY not in (state.message or ""):
        problems.append(f"{wrong}.")
        besides.append(f"{wrong}.")
    if not problems:
        return state
    for problem in besides:
        get_run_logger().warning("%s", problem)
    if state.name == "Completed":
        message = f"All {len(went_through)} stages went through, but {' '.join(problems)}"
        return Completed(name="Stale", message=message)
    message = f"{state.message} ({' '.join(besides)})"
    return State(type=state.type, name=state.name, message=message)


def second_try_can_help(_task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether a stage that ended in `state` deserves its one retry."""
    if state.name not in WORTH_A_RETRY:
        return False
    return run.flow_run_id is None or not is_cancelled(run.flow_run_id)


@task(
    task_run_name="{name}",
    retries=1,
    retry_delay_seconds=1,
    retry_condition_fn=second_try_can_help,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def stage(
    name: str, root: Path, execution: str, *, stale: bool, pool: str | None = None
) -> State[None]:
    """One DVC stage, here or in a work pool; how it ended becomes the name of the state."""
    if not stale:
        return task_state(Ending("unchanged"))
    cancelled = partial(is_cancelled, UUID(str(runtime.flow_run.id)))
    if pool is not None:
        ending = run_in_pool(name, root, pool, execution=execution, is_cancelled=cancelled)
    else:
        logger = get_run_logger()
        ending = run_stage(name, root, execution=execution, logger=logger, is_cancelled=cancelled)
    return task_state(ending)


def ask_for_promotion(root: Path, params: Params) -> None:
    """Have a person decide on the final policy; on the newest before it while it is not there."""
    evaluated = {policy["name"] for policy in read_results(root, params)["policies"]}
    towards_final = [key for key in formed_in(params.rounds, params.final) if key in evaluated]
    if towards_final:
        promotion_request.ask(root, towards_final[-1])


if __name__ == "__main__":
    sys.exit("`python -m flows.local` (or `make flow`) runs the flow.")
