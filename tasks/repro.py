"""`python -m tasks.repro [--variant NAME]` (`make repro`): the whole pipeline, then its results.

`--preset NAME --model FOLDER` writes a preset into params.yaml first (tasks/params/presets.py).
Checks all of params.yaml, runs `dvc repro`, ships metrics and models to MLflow beside it, writes
`reports/summary.json` and prints the result round by round. Exit codes: 0 done or nothing to do,
2 bad input, 3 training stopped itself, 4 the data gate or a probe blocked, 5 waiting for people, 6
something changed during the run (run again), 7 another run is using this folder, 143 or 130
interrupted (run again to resume), 137 a stage was killed (memory), 1 anything else.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tasks.own_data.model_checks import folder_problems
from tasks.own_data.preflight import check_inputs
from tasks.params.loading import Params, ParamsError, load_params
from tasks.params.presets import describe, take_preset
from tasks.promoting.registration import tag_and_register
from tasks.reporting.ending import Ended, how_it_ended
from tasks.reporting.result_table import gpu_line, memory_line, result_table, time_lines
from tasks.reporting.run_results import read_results, write_summary
from tasks.reporting.summary import has_worked
from tasks.reporting.unfinished import rounds_that_ended, unfinished_stages
from tasks.running.machine_errors import in_one_line
from tasks.running.outcome import require_sound_outcomes, seconds_of_stages
from tasks.running.provenance import drop_recorded_checkpoints, wrong_entries
from tasks.running.saying import say
from tasks.tracking.execution_record import record_end, record_rounds, record_start
from tasks.tracking.shipper import Shipper
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.spool import Status
from tasks.workspace.driver_lock import (
    BUSY_EXIT_CODE,
    STALE_EXIT_CODE,
    Driver,
    WorkspaceBusyError,
    refuse_if_busy,
    sole_use,
)
from tasks.workspace.dvc_lockfile import DamagedLockError, read_entries
from tasks.workspace.dvc_process import DvcProcess, dvc_environment
from tasks.workspace.dvc_rwlock import clear_stale
from tasks.workspace.execution import (
    begin_execution,
    is_of_last_execution,
    lock_digest,
    save_execution,
)
from tasks.workspace.files import DamagedNoteError, now_ms, outside_repository
from tasks.workspace.former_rounds import put_away_former_rounds
from tasks.workspace.shared_weights import share_idle_outputs
from tasks.workspace.variants import params_files, require_valid, variant_workspace
from tasks.workspace.worktrees import VARIANTS_FOLDER, WorkspaceError

SHIPPING_DEADLINE_SECONDS = 60.0
_KILLED = (130, 137, 143)
STATUSES: Mapping[int, Status] = {0: "FINISHED", 5: "SCHEDULED", **dict.fromkeys(_KILLED, "KILLED")}
"""Exit code -> how the parent run in MLflow ended; FAILED for all others."""


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    options = _options(argv)
    variant: str | None = options.variant
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    root = Path.cwd()
    driver = Driver(name=f"`make repro VARIANT={variant}`" if variant else "`make repro`")
    try:
        if problem := outside_repository(root):
            raise WorkspaceError(problem)
        with ExitStack() as held:
            workspace = root
            if variant is not None:
                require_valid(root, variant)
                workspace = held.enter_context(variant_workspace(root, variant, driver))
            read_entries(workspace)  # DVC would refuse a damaged one only after all preparations.
            if options.preset is not None:
                refuse_if_busy(workspace)
                _require_model(workspace, options.model)
                changes = take_preset(workspace, options.preset, options.model)
                sys.stdout.write(describe(options.preset, changes))
                sys.stdout.flush()
            params = load_params(workspace / "params.yaml")
            if variant is None:  # Wrong params leave nothing in the folder.
                held.enter_context(sole_use(workspace, driver))
            require_sound_outcomes(workspace)
            check_inputs(params, workspace)
            if former := put_away_former_rounds(workspace, params.rounds):
                names = ", ".join(former)
                sys.stderr.write(f"Not in params.yaml, put away in DVC's cache: {names}\n")
            return _bring_up_to_date(root, workspace, params, variant)
    except (ParamsError, WorkspaceError, DamagedLockError, DamagedNoteError) as error:
        sys.stderr.write(f"{_with_own_names(str(error), root, variant)}\n")
        return 2
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE


def _with_own_names(said: str, root: Path, variant: str | None) -> str:
    """What was said, with the files that a person has written in the place of a variant's own."""
    if variant is None:
        return said
    return said.replace(f"{root / VARIANTS_FOLDER / variant}/params.yaml", params_files(variant))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tasks.repro", description=__doc__)
    parser.add_argument("--variant", metavar="NAME", help="overlay params/NAME.yaml on params.yaml")
    parser.add_argument("--preset", metavar="NAME", help="first write params/presets/NAME.yaml in")
    parser.add_argument("--model", metavar="FOLDER", help="with --preset: becomes base.model")
    options = parser.parse_args(argv)
    if options.preset is None and options.model is not None:
        parser.error("--model (MODEL=) goes with --preset (PRESET=)")
    if options.preset is not None and options.variant is not None:
        parser.error("--preset changes params.yaml, over which --variant is laid; one at a time")
    return options


def _require_model(root: Path, model: str | None) -> None:
    """Look at the folder of MODEL= before params.yaml names it."""
    if model is not None and (root / model).is_dir():
        for problem in folder_problems(root / model):
            raise ParamsError(f"MODEL={model}: {problem}; params.yaml is as it was")


def _bring_up_to_date(root: Path, workspace: Path, params: Params, variant: str | None) -> int:
    # A variant has folders of its own, but shares the MLflow of the main checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    environment = dvc_environment(os.environ)
    if up_to_date := _up_to_date(workspace, environment):
        ended = _check_entries(workspace)
        if ended.code == 0:
            sys.stdout.write("Nothing to do: all stages are up to date.\n\n")
    # Results that were fetched by git and DVC, from elsewhere or of an older commit, get an
    # execution of their own, with a row in MLflow: the last one here made others.
    if not (up_to_date and is_of_last_execution(workspace)):
        ended = _run(workspace, environment, variant, params)
        if ended.code == 0:
            ended = _check_still_current(workspace)
    # What became stale during the run is of this run all the same, and the message says so.
    settled = ended.code in (0, STALE_EXIT_CODE)
    unfinished = () if settled else unfinished_stages(workspace) or ()
    summary = write_summary(workspace, params, whole=ended.code == 0, unfinished=unfinished)
    if ended.code in (0, 5, STALE_EXIT_CODE):
        folder, labelled = workspace.relative_to(root), params.label.annotators != "none"
        reported = "report" not in unfinished
        words = _closing_words(summary, folder, variant, labelled=labelled, reported=reported)
        sys.stdout.write(words)
    if ended.message:
        say(f"{ended.message}\n")
    return ended.code


def _check_still_current(workspace: Path) -> Ended:
    """Success, unless inputs changed while the stages ran and made some of them stale again."""
    # Imported here because it imports DVC, which would delay every earlier step.
    from tasks.workspace.dvc_graph import DvcBusyError, GraphError, changes, in_words  # noqa: PLC0415

    try:
        if not (found := changes(workspace)):
            return _check_entries(workspace)
        problem = f"some became stale during the run: {in_words(found)}"
    except (GraphError, DvcBusyError) as error:
        problem = f"they cannot be compared with the current files: {error}"
    return Ended(STALE_EXIT_CODE, f"All stages have run, but {problem}. Run again.")


def _check_entries(workspace: Path) -> Ended:
    """Success, unless DVC calls a stage up to date that was made from something else."""
    wrong = wrong_entries(workspace)
    return Ended(STALE_EXIT_CODE, f"All stages have run, but {wrong}.") if wrong else Ended(0, "")


def _up_to_date(workspace: Path, environment: dict[str, str]) -> bool:
    """Whether DVC says so; False also on an error, which `dvc repro` will then explain."""
    command = [sys.executable, "-m", "dvc", "status", "--quiet"]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, check=False)
    return done.returncode == 0


def _run(
    workspace: Path, environment: dict[str, str], variant: str | None, params: Params
) -> Ended:
    execution = begin_execution(workspace, variant)
    # A call that was killed could not add its time: what its stages took is known all the same.
    execution.seconds = max(execution.seconds, seconds_of_stages(workspace, execution.id))
    record_start(workspace, execution.id, params)
    started, started_ms = time.monotonic(), now_ms()
    for problem in clear_stale(workspace):
        sys.stderr.write(f"{problem}; removed\n")
    dvc = DvcProcess(
        ["repro"], folder=workspace, environment=environment | {"RLHF_EXECUTION": execution.id}
    )
    shipper = Shipper(workspace)
    code = dvc.wait()
    drop_recorded_checkpoints(workspace)
    ended = how_it_ended(workspace, execution.id, code, dvc.signalled, started_ms)
    execution.seconds += time.monotonic() - started
    execution.unfinished = ended.code != 0
    execution.lock = lock_digest(workspace)
    results = read_results(workspace, params)
    stopped = ended.code != 0 and has_worked(workspace, execution.id)
    if stopped and (rounds := rounds_that_ended(workspace, params.rounds)):
        record_rounds(workspace, execution.id, rounds, params.final, results)
    record_end(
        workspace,
        execution.id,
        status=STATUSES.get(ended.code, "FAILED"),
        message=ended.message,
        seconds=execution.seconds,
        results=results,
    )
    save_execution(workspace, execution)  # Last: the next call records the end that is lacking.
    arrived = False
    with suppress(KeyboardInterrupt):  # All that is left can be sent later.
        arrived = shipper.close(SHIPPING_DEADLINE_SECONDS)
    if arrived:
        tag_and_register(workspace)
    else:
        say("Not everything is in MLflow yet; `make sync` sends the rest.\n")
    share_idle_outputs(workspace)
    return ended


def _closing_words(
    summary: dict[str, Any],
    workspace: Path,
    variant: str | None,
    *,
    labelled: bool,
    reported: bool,
) -> str:
    annotate = f"make annotate VARIANT={variant}" if variant else "make annotate"
    report = str(workspace / "reports" / "index.html")
    places = {
        **({"Report": report} if reported else {}),  # Else it is of an earlier run.
        "Numbers": str(workspace / "reports" / "summary.json"),
        "MLflow, Prefect": "make ui",
        **({"Label by hand": annotate} if labelled else {}),
    }
    lines = "".join(f"{name:<16}{place}\n" for name, place in places.items())
    cost = time_lines(summary["seconds"]) + memory_line(summary["peak_rss_bytes"])
    cost += gpu_line(summary["machine"])
    return f"{result_table(summary)}\n{cost}\n{lines}"


if __name__ == "__main__":
    sys.exit(main())
