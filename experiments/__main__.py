"""`python -m experiments NAME [--seeds 10-17]`: run what is missing, then write the page.

Exit codes: 0 every run has a result, 1 some have none, 2 bad input, 7 another run works in one of
the workspaces, 130 interrupted (run again to continue).
"""

import argparse
import os
import sys
from pathlib import Path

from experiments.descriptions import (
    DescriptionError,
    Experiment,
    available,
    load_experiment,
    read_seeds,
)
from flows import servers
from flows.environment import environment
from flows.local import prefect_server
from tasks.params.loading import ParamsError
from tasks.workspace.driver_lock import BUSY_EXIT_CODE, WorkspaceBusyError
from tasks.workspace.worktrees import WorkspaceError


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    root = Path.cwd()
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", help=f"one of: {', '.join(available(root))}")
    parser.add_argument(
        "--seeds", help="such as 10-17 or 0,1,2; those of the experiment by default"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--page", action="store_true", help="run nothing, write the page")
    only.add_argument("--readme", action="store_true", help="run nothing, write README's table")
    options = parser.parse_args(arguments)
    try:
        experiment = load_experiment(root, options.name)
        seeds = experiment.seeds if options.seeds is None else read_seeds(options.seeds)
        if options.readme:
            return _write_readme(root, experiment)
        return _write_page(root, experiment) if options.page else _run(root, experiment, seeds)
    except (DescriptionError, ParamsError, WorkspaceError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except WorkspaceBusyError as error:
        sys.stderr.write(f"{error}\n")
        return BUSY_EXIT_CODE
    except servers.ServerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(root: Path, experiment: Experiment, seeds: list[int]) -> int:
    os.environ.update(environment(root))
    with prefect_server() as wait_for_server:
        # Imported here: Prefect takes the settings made above when it is imported.
        from prefect.logging.handlers import APILogHandler  # noqa: PLC0415

        from experiments.sweep import sweep  # noqa: PLC0415

        wait_for_server()
        try:
            state = sweep(experiment.name, root, seeds, return_state=True)
        finally:
            # Lines are sent every two seconds; to a server that has gone for minutes.
            APILogHandler().flush()
    sys.stdout.write(f"{state.name}: {state.message}\n")
    written = _write_page(root, experiment)
    return written if state.is_completed() else 1


def _write_page(root: Path, experiment: Experiment) -> int:
    from experiments.pages import write_page  # noqa: PLC0415 (matplotlib takes a second)

    path = write_page(root, experiment)
    sys.stdout.write(f"{path.relative_to(root)}\n")
    return 0


def _write_readme(root: Path, experiment: Experiment) -> int:
    from experiments.pages import put_into_readme, readme_table  # noqa: PLC0415

    table = readme_table(root, experiment)
    if not put_into_readme(root, table):
        sys.stdout.write(f"{table}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
