"""The deployed flow: a run in a workspace of its own, as somebody ordered it in Prefect's form.

The checkout that the flow is served from is not touched: a run takes a commit of it, and leaves a
branch and a tag (`tasks.workspace.runs`, `flows.run_branch`). Several may work at once.
"""

import inspect
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import Flow, flow, runtime
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.states import Completed, Failed
from pydantic import Field, JsonValue, StringConstraints

from flows.crashed import end_with_the_worker, report_crash, what_it_did_has_crashed
from flows.notices import tell_of_own_cancel, tell_the_end
from flows.rlhf import bring_up_to_date
from flows.run_branch import RunBranch
from flows.starts import common_start
from flows.states import leave_out_what_the_state_says
from tasks.params.loading import ParamsError, load_params
from tasks.running.amounts import amount
from tasks.tracking.shipping import tracking_uri
from tasks.workspace.choices import Choices
from tasks.workspace.driver_lock import LOCK_FILE, Driver, WorkspaceBusyError
from tasks.workspace.dvc_graph import DvcBusyError, GraphError
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.files import DamagedNoteError, read_json, write_json
from tasks.workspace.former_rounds import put_away_former_rounds
from tasks.workspace.held import is_held
from tasks.workspace.runs import NAMES, run_workspace
from tasks.workspace.worktrees import RUNS_FOLDER, WorkspaceError

NAME = "rlhf"
DEPLOYMENT = f"{NAME}/{NAME}"
NOTE = Path(".work") / "run.json"
"""In a run's workspace: the last stage that was wanted, whether the run waits for people, and the
ordered flow run (of a sweep's run the sweep) that works or has worked there. One that goes on waits
until it ends or is cancelled: killed meanwhile, it is continued as before."""
LABELLED = NOTE.with_name("labelled.json")
"""Beside it, where people have labelled a round since the run started working: when that was."""
MAX_NAME = 80
"""Characters of a run's name."""
TRIGGER = "round-labelled"
"""Name of the automation, and a tag of the runs that are ordered because of it."""
SEED = "run.seed"
TWO_SEEDS = f"{SEED} is what the field `seeds` sets; leave out one of the two"
PEOPLE = {"as params.yaml says": None, "yes": True, "no": False}
_BAD_INPUT = (ParamsError, WorkspaceError, GraphError, DamagedLockError, DamagedNoteError)


Line = StringConstraints(strip_whitespace=True)
"""A field of the form whose boxes have room for several lines: Enter leaves a line's end in it."""


def name_of_this_run() -> str:
    """The name that was entered, or the one that the run gives itself."""
    return entered_name(runtime.flow_run.parameters) or _default_name()


def entered_name(parameters: Mapping[str, Any]) -> str:
    """The name among what was entered, as the flow itself gets it; empty where there is none."""
    return str(parameters.get("name") or "").strip()


def waits_no_more(
    flow: Flow[..., Any],  # noqa: ARG001 - Prefect gives it by this name
    flow_run: FlowRun,
    state: State[Any],  # noqa: ARG001
) -> None:
    """For `on_cancellation`, in the checkout: whoever cancels a run wants no labels for it."""
    name = entered_name(flow_run.parameters) or _name_by_id(str(flow_run.id))
    path = Path.cwd() / RUNS_FOLDER / name / NOTE
    if note := read_json(path):
        write_json(path, {**note, "waits": False})


@flow(
    name=NAME,
    flow_run_name=name_of_this_run,
    persist_result=False,
    on_completion=[tell_the_end],
    on_failure=[tell_the_end],
    on_cancellation=[waits_no_more, tell_the_end],
    on_crashed=[what_it_did_has_crashed],
    description="SFT, then rounds of feedback and PPO, in a workspace and on a branch of its own.",
)
def run(  # noqa: PLR0913 - an argument is a field of the form
    *,
    name: Annotated[str, Line, Field(max_length=MAX_NAME, pattern=f"^({NAMES})?$")] = "",
    revision: Annotated[str, Line, Field(max_length=200)] = "",
    recipe: Annotated[str, Line, Field(max_length=80)] = "",
    overrides: dict[str, JsonValue] = {},  # noqa: B006 - Prefect shows it in the form
    rounds: Annotated[int, Field(ge=1, le=100)] | None = None,
    until: Annotated[str, Line, Field(max_length=80)] = "",
    wait_for_people: Literal["as params.yaml says", "yes", "no"] = "as params.yaml says",
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=100)] = [],  # noqa: B006
) -> State[None]:
    """Run the pipeline of a revision, and keep what each round has done on the branch runs/NAME.

    Args:
        name: Of the run (once it starts, instead of the Run Name above), its workspace
            (.work/runs/NAME) and its branch (runs/NAME): letters a to z, digits, - and _, dots
            within. The name of a run that exists continues it, with whatever is entered below.
            Empty: a new run.
        revision: Branch, tag or commit to start from, as committed: unsaved edits are not part of
            it. Empty: the commit that is checked out when the run starts, after those before it.
        recipe: A variant (params/NAME.yaml) or a preset (params/presets/NAME.yaml; it needs
            base.model among the overrides) to lay over params.yaml. Empty: neither.
        overrides: Single parameters by their dotted names, such as {"ppo.kl_coef": 0.1,
            "sft.epochs": 2}; docs/params.md has all of them.
        rounds: How many rounds, 1 to 100; choose int to enter a number. More than params.yaml has
            go on like its last one; a number above that of a run that is continued adds rounds to
            it. None: as params.yaml has them.
        until: The last stage that is wanted, such as sft or ppo@r2. Empty: all.
        wait_for_people: Whether people label each round; the run then ends as Waiting, and goes on
            by itself when they are done. no: the rubric labels where params.yaml asks for people.
        seeds: One seed for this run, or several: then a run is ordered for each, NAME-seed0 and
            so on, all from the same commit. Empty: the seed of params.yaml.
    """
    end_with_the_worker()
    leave_out_what_the_state_says()
    own_name = name or _default_name()
    root, me = Path.cwd(), Driver(name=f"flow run {own_name}", flow_run=str(runtime.flow_run.id))
    try:
        values = _with_seed(overrides, seeds)
        if len(seeds) > 1:
            return order_for_each(seeds, own_name, dict(runtime.flow_run.parameters))
        start = start_of(root, own_name, revision)
        choices = Choices(
            recipe=recipe or None, rounds=rounds, people=PEOPLE[wait_for_people], values=values,
            until=until or None,
        )  # fmt: skip
        with (
            run_workspace(root, own_name, start, choices, me) as (workspace, died_here),
            _settings_of(root, workspace),
        ):
            for died in died_here:
                report_crash(died)
            state = _work(workspace, choices.until)
        continue_if_labelled(workspace)  # Now that it is free.
        tell_of_own_cancel(state)
        return state
    except _BAD_INPUT as error:
        return Failed(name="BadInput", message=str(error))
    except (WorkspaceBusyError, DvcBusyError) as error:
        return Failed(name="Busy", message=str(error))


def _with_seed(overrides: Mapping[str, object], seeds: Sequence[int]) -> dict[str, object]:
    if seeds and SEED in overrides:
        raise ParamsError(f"overrides: {TWO_SEEDS}")
    return {**({SEED: seeds[0]} if seeds else {}), **overrides}


def order_for_each(
    seeds: Sequence[int], name: str, parameters: Mapping[str, object]
) -> State[None]:
    """Order one run for each seed, all of one commit; none where a name would be too long."""
    names = {seed: f"{name}-seed{seed}" for seed in seeds}
    if too_long := list(filter(None, map(excess, names.values()))):
        return Failed(name="BadInput", message="\n".join(too_long))
    revision = str(parameters.get("revision") or "").strip()
    starts = common_start(Path.cwd(), names.values(), revision)
    for seed, each in names.items():
        run_deployment(
            DEPLOYMENT,
            parameters={**parameters, "name": each, "seeds": [seed], "revision": starts[each]},
            timeout=0,
            as_subflow=False,
            idempotency_key=f"{runtime.flow_run.id}-{seed}",
        )
    return Completed(
        name="Ordered", message=f"{amount(len(names), 'run')}: {', '.join(names.values())}"
    )


def excess(name: str) -> str:
    """What is wrong with a run's name that is too long; empty where it is not."""
    if len(name) <= MAX_NAME:
        return ""
    return f"name: {name} has more than {MAX_NAME} characters; choose a shorter one"


def order_waiting(root: Path) -> list[str]:
    """Order each run that waits for people once more, since a round is labelled; their names.

    Not a run that is at work now, which would refuse another. It may have looked for labels before
    and end as `Waiting` after this: it finds a note, and orders itself (`continue_if_labelled`).
    """
    now = str(time.time_ns())
    for note in (root / RUNS_FOLDER).glob(f"*/{NOTE}"):
        write_json(note.with_name(LABELLED.name), {"labelled": now})
    # Only now: a run first writes that it waits, and then looks for our note.
    waiting = waiting_runs(root)
    for name, until in waiting.items():
        _order_again(name, until, now)
    return list(waiting)


def continue_if_labelled(workspace: Path) -> None:
    """Order the run that has worked here once more, if it waits for what was labelled meanwhile."""
    note, labelled = read_json(workspace / NOTE), read_json(workspace / LABELLED)
    if note and note["waits"] and labelled:
        _order_again(workspace.name, note["until"] or "", labelled["labelled"])


def _order_again(name: str, until: str, labelled: str) -> None:
    # What people have made the deployment's defaults is for other runs: each field is named.
    empty = {key: one.default for key, one in inspect.signature(run.fn).parameters.items()}
    run_deployment(
        DEPLOYMENT,
        parameters={**empty, "name": name, "until": until},
        timeout=0,
        as_subflow=False,
        tags=[TRIGGER],
        # Where both of the above order it, one of the two counts.
        idempotency_key=f"{name}-{labelled}",
    )


def waiting_runs(root: Path) -> dict[str, str]:
    """Name of each run that only waits for people -> the last stage wanted of it, empty for all."""
    notes = {
        path.parents[1].name: read_json(path)
        for path in sorted((root / RUNS_FOLDER).glob(f"*/{NOTE}"))
    }
    return {
        name: note["until"] or ""
        for name, note in notes.items()
        if note and note["waits"] and not is_held(root / RUNS_FOLDER / name / LOCK_FILE)
    }


def _default_name() -> str:
    """The same whenever this flow run is tried again."""
    return _name_by_id(runtime.flow_run.id)


def _name_by_id(flow_run: str) -> str:
    # The end of the id: ids of one minute begin alike.
    return f"run-{flow_run[-8:]}"


def start_of(root: Path, name: str, revision: str) -> str | None:
    """The revision that a run is to start from; None: where it did, or what is checked out.

    One that this very flow run has ordered is tried again: its branch may have moved since.
    """
    note = read_json(root / RUNS_FOLDER / name / NOTE)
    tried_again = note is not None and note.get("flow_run") == _ordered_as()
    return None if tried_again else revision or None


def _ordered_as() -> str:
    """The flow run that somebody has ordered: this one, or the sweep that it is of."""
    return str(runtime.flow_run.root_flow_run_id)


def _work(workspace: Path, until: str | None) -> State[None]:
    """Bring the workspace up to date, with a commit for each round."""
    flow_run = str(runtime.flow_run.id)
    (workspace / LABELLED).unlink(missing_ok=True)
    before = read_json(workspace / NOTE)
    note: dict[str, object] = {"until": until, "flow_run": _ordered_as()}
    write_json(workspace / NOTE, {**note, "waits": bool(before and before["waits"])})
    try:
        params = load_params(workspace / "params.yaml")
        # A run that is continued may have had more of them.
        put_away_former_rounds(workspace, params.rounds)
        branch = RunBranch(workspace, flow_run)
        branch.start()
        end = bring_up_to_date(workspace, flow_run, params, until=until, branch=branch)
        state = branch.finish(end)
    except Exception:  # Not a signal, after which it may go on.
        write_json(workspace / NOTE, {**note, "waits": False})
        raise
    write_json(workspace / NOTE, {**note, "waits": state.name == "Waiting"})
    return state


@contextmanager
def _settings_of(root: Path, workspace: Path) -> Iterator[None]:
    """The checkout's MLflow and labelling store, which all runs of it share."""
    named = load_params(workspace / "params.yaml").label.store
    store = os.environ.get("RLHF_FEEDBACK_STORE") or named
    before = dict(os.environ)
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    os.environ["RLHF_FEEDBACK_STORE"] = store if "://" in store else str(root / store)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
