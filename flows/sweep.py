"""Overrides times seeds: a run for each, in a workspace of its own, and a table of differences.

What is wrong with any of them is found before the first starts. Runs follow each other seed by
seed, so that a sweep that is cut short leaves whole pairs. What runs have in common comes from
DVC's cache. Ordered again under its name, a sweep continues.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger, runtime
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field, JsonValue

from flows import runs
from flows.artifacts import artifact_key
from flows.crashed import end_with_the_worker, what_it_did_has_crashed
from flows.notices import tell_the_end
from flows.starts import common_start, known_start
from flows.states import leave_out_what_the_state_says
from rlhf.intervals import MIN_VALUES, mean_interval
from tasks.params.loading import ParamsError, load_params
from tasks.reporting.run_results import read_results
from tasks.workspace.choices import Choices
from tasks.workspace.files import DamagedNoteError
from tasks.workspace.runs import NAMES, is_known, try_choices
from tasks.workspace.worktrees import RUNS_FOLDER, WorkspaceError

NAME = "rlhf-sweep"
BASE = "base"
"""The runs without overrides, from which the others are told apart."""
FIGURES = {"gold": "gold score (of 10)", "win_rate_vs_sft": "win rate vs SFT", "kl": "KL to SFT"}
DONE = ("Completed", "NotPushed")

Figures = Mapping[str, float]
Label = Annotated[str, Field(pattern=f"^{NAMES}$", max_length=40)]


def name_of_this_sweep() -> str:
    """The name that was entered, or the one that the sweep gives itself."""
    return runs.entered_name(runtime.flow_run.parameters) or _default_name()


@flow(
    name=NAME,
    flow_run_name=name_of_this_sweep,
    persist_result=False,
    on_completion=[tell_the_end],
    on_failure=[tell_the_end],
    on_cancellation=[tell_the_end],
    on_crashed=[what_it_did_has_crashed],
    description="Overrides times seeds, a run for each, and a table of paired differences.",
)
def sweep(
    *,
    overrides: Annotated[dict[Label, dict[str, JsonValue]], Field(min_length=1)],
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=100)],
    name: Annotated[str, runs.Line, Field(max_length=40, pattern=f"^({NAMES})?$")] = "",
    revision: Annotated[str, runs.Line, Field(max_length=200)] = "",
    recipe: Annotated[str, runs.Line, Field(max_length=80)] = "",
    rounds: Annotated[int, Field(ge=1, le=100)] | None = None,
) -> State[None]:
    """Run the pipeline without overrides and with each of them, for each seed.

    Args:
        overrides: A name for each change, and its parameters by their dotted names, such as
            {"kl010": {"ppo.kl_coef": 0.1}, "kl002": {"ppo.kl_coef": 0.02}}. Runs without any
            change, called base, are always among them.
        seeds: Each change is run with each of these seeds, and compared with base seed by seed.
        name: Of the sweep (once it starts, instead of the Run Name above); its runs are called
            NAME-CHANGE-seed0 and so on. The name of a sweep that exists continues it. Empty: a new
            one.
        revision: Branch, tag or commit that all new runs start from, as it is when the sweep
            starts. Empty: the commit that is checked out then, or where the sweep's known runs
            started.
        recipe: A variant (params/NAME.yaml) or a preset (params/presets/NAME.yaml) to lay over
            params.yaml. Empty: neither.
        rounds: How many rounds, 1 to 100; choose int to enter a number. None: as params.yaml has
            them.
    """
    end_with_the_worker()
    leave_out_what_the_state_says()
    root, whole, lacking = Path.cwd(), name or _default_name(), []
    common = Choices(recipe=recipe or None, rounds=rounds)
    changes = [BASE, *overrides]
    names = [_run_name(whole, label, seed) for seed in seeds for label in changes]
    try:
        if wrong := refusals(root, whole, revision, common, overrides, seeds):
            return Failed(name="BadInput", message="\n".join(wrong))
        starts = common_start(root, names, revision)
    except (WorkspaceError, DamagedNoteError) as error:
        return Failed(name="BadInput", message=str(error))
    figures: dict[str, dict[int, Figures]] = {label: {} for label in changes}
    judges: set[str | None] = set()
    for seed in dict.fromkeys(seeds):
        for label in figures:
            run = _run_name(whole, label, seed)
            state = runs.run(
                name=run, revision=starts[run], recipe=recipe, overrides=overrides.get(label, {}),
                rounds=rounds, seeds=[seed], return_state=True,
            )  # fmt: skip
            get_run_logger().info("%s: %s: %s", run, state.name, state.message)
            if state.name in DONE:
                figures[label][seed] = final_figures(root / RUNS_FOLDER / run)
                judges.add(final_judge(root / RUNS_FOLDER / run))
            else:
                lacking.append(f"{run} ({state.name}: {state.message})")
    _publish(whole, figures, judges)
    if lacking:
        return Failed(name="Incomplete", message=f"without a result: {'; '.join(lacking)}")
    return Completed(message=f"All {len(figures) * len(set(seeds))} runs have a result.")


def refusals(
    root: Path,
    name: str,
    revision: str,
    common: Choices,
    overrides: Mapping[str, Mapping[str, object]],
    seeds: Sequence[int],
) -> list[str]:
    """What is wrong with any run of a sweep, a line each; nothing is made or changed.

    Args:
        root: the checkout.
        name: of the sweep.
        revision: as entered; empty: new runs start where the known ones did (`common_start`).
        common: the choices of all runs.
        overrides: change -> its parameters.
        seeds: of each change.
    """
    if BASE in overrides:
        return [f"overrides.{BASE}: the runs without any change are called so; choose another name"]
    if twice := [label for label, values in overrides.items() if runs.SEED in values]:
        return [f"overrides.{label}: {runs.TWO_SEEDS}" for label in twice]
    names = [_run_name(name, label, seed) for seed in seeds for label in [BASE, *overrides]]
    start, problems = revision or known_start(root, names), dict[str, None]()
    for label, values in {BASE: {}, **overrides}.items():
        for seed in dict.fromkeys(seeds):
            run = _run_name(name, label, seed)
            # New runs of a change differ in nothing but the seed; known ones may be of any commit.
            if seed != seeds[0] and len(run) <= runs.MAX_NAME and not is_known(root, run):
                continue
            choices = replace(common, values={runs.SEED: seed, **values})
            given = revision if is_known(root, run) else start
            for line in _refusals_of_one(root, run, given, choices):
                # What base is refused for is no fault of a change.
                if line not in problems:
                    problems[line if label == BASE else f"overrides.{label}: {line}"] = None
    return list(problems)


def _publish(
    name: str, figures: Mapping[str, Mapping[int, Figures]], judges: Collection[str | None]
) -> None:
    create_table_artifact(
        table=paired_rows(figures),
        key=artifact_key(name),
        description="Means over seeds, and differences from base, paired by seed, with 95 % "
        f"intervals; held-out prompts.{judged_by(judges)}",
    )


def paired_rows(figures: Mapping[str, Mapping[int, Figures]]) -> list[dict[str, str]]:
    """A row for each change: its means over seeds, and how it differs from base seed by seed.

    Args:
        figures: change (`base` among them) -> seed -> figure -> value.
    """
    rows = []
    for label, by_seed in figures.items():
        row = {"change": label, "seeds": str(len(by_seed))}
        for figure, title in FIGURES.items():
            values = [found[figure] for found in by_seed.values() if figure in found]
            row[title] = f"{sum(values) / len(values):.3f}" if values else "-"
            if label != BASE:
                row[f"{title}, difference"] = _difference(figures[BASE], by_seed, figure)
        rows.append(row)
    # A table has one list of columns, that of its first row.
    columns = list(rows[-1])
    return [{column: row.get(column, "-") for column in columns} for row in rows]


def _run_name(name: str, label: str, seed: int) -> str:
    return f"{name}-{label}-seed{seed}"


def _refusals_of_one(root: Path, run: str, revision: str, choices: Choices) -> list[str]:
    if too_long := runs.excess(run):
        return [too_long]
    try:
        try_choices(root, run, runs.start_of(root, run, revision), choices)
    except (ParamsError, WorkspaceError) as error:
        return str(error).splitlines()
    return []


def _default_name() -> str:
    """The same whenever this flow run is tried again."""
    return f"sweep-{runtime.flow_run.id[-8:]}"


def _difference(base: Mapping[int, Figures], other: Mapping[int, Figures], figure: str) -> str:
    pairs: Sequence[float] = [
        found[figure] - base[seed][figure]
        for seed, found in other.items()
        if figure in found and figure in base.get(seed, {})
    ]
    if len(pairs) < MIN_VALUES:
        return f"{pairs[0]:+z.3f}" if pairs else "-"
    mean = mean_interval(pairs)
    return f"{mean.mean:+z.3f} [{mean.low:+z.3f}, {mean.high:+z.3f}]"


def final_figures(workspace: Path) -> dict[str, float]:
    """Of the final policy of a run."""
    final = _final(workspace)
    return {figure: final[figure]["mean"] for figure in FIGURES if final.get(figure) is not None}


def final_judge(workspace: Path) -> str | None:
    """Who judged the win rate of the final policy of a run; None where nobody did."""
    return _final(workspace).get("win_rate_judge")


def judged_by(judges: Collection[str | None]) -> str:
    """What a reader of the table has to know of its win rates; empty where there is nothing."""
    if not {"reward_model", "mixed_reward"} & {*judges}:
        return ""
    return (
        " Win rates are by the reward model whose score the run's policy was made to raise, its "
        "own where it trained one: their differences do not tell which policy is better. Another "
        "judge in evaluate.judge does."
    )


def _final(workspace: Path) -> dict[str, Any]:
    params = load_params(workspace / "params.yaml")
    policies = read_results(workspace, params)["policies"]
    return next((one for one in policies if one["name"] == params.final), {})
