"""`python -m flows.local` (`make flow`): the flow in this process.

Where no Prefect server runs, one of its own starts while this process imports Prefect, and ends
with it; its UI can be looked at meanwhile. Where `make ui` runs, or `PREFECT_API_URL` is set, that
server is used instead.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows import servers
from flows.access import client_settings, sign_in
from flows.environment import environment
from flows.reach import ReachError, require_address, require_prefect
from tasks.own_data.preflight import check_inputs
from tasks.params.loading import ParamsError, load_params
from tasks.tracking.run_names import run_name
from tasks.workspace.driver_lock import (
    BUSY_EXIT_CODE,
    STALE_EXIT_CODE,
    WorkspaceBusyError,
    refuse_if_busy,
)

EXIT_CODES = {
    "BadInput": 2,
    "Stopped": 3,
    "Blocked": 4,
    "Waiting": 5,
    "Stale": STALE_EXIT_CODE,
    "Busy": BUSY_EXIT_CODE,
}
"""By the name of the flow's final state, as for every entry point; of others 0 or 1."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.local",
        description="Run the pipeline in this folder as a Prefect flow, in this process.",
        epilog="Exit codes: 0 done, 2 bad input, 3 training stopped itself, 4 the data gate "
        "or a probe of the reward model blocked, 5 waiting for people, 6 something changed while "
        "it ran (run again), 7 another run works in this folder, 1 anything else.",
    )
    parser.parse_args(argv)
    root = Path.cwd()
    os.environ.update(environment(root))
    try:
        check_inputs(load_params(root / "params.yaml"), root)
        refuse_if_busy(root)
        return _run_flow(root)
    except (ParamsError, ReachError) as error:
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


def _run_flow(root: Path) -> int:
    with prefect_server() as wait_for_server:
        # Imported here: Prefect takes the settings made above when it is imported, and the server
        # starts meanwhile.
        from prefect.logging.handlers import APILogHandler  # noqa: PLC0415

        from flows import notices  # noqa: PLC0415
        from flows.rlhf import rlhf  # noqa: PLC0415

        wait_for_server()
        name = run_name(root, load_params(root / "params.yaml"))
        try:
            with notices.telling(name) as ended_in:
                state = rlhf(workspace=root, return_state=True)
                ended_in.append(state)
        finally:
            # Lines are sent every two seconds; to a server that has gone for a minute.
            APILogHandler().flush()
    _say(f"{state.name}: {state.message}")
    return EXIT_CODES.get(state.name or "", 0 if state.is_completed() else 1)


@contextmanager
def prefect_server() -> Iterator[Callable[[], None]]:
    """A Prefect server for this process's settings; yields what waits until it works."""
    home = Path(os.environ["PREFECT_HOME"])
    if os.environ.get("PREFECT_API_URL"):
        require_address()
        yield require_prefect
    elif (running := servers.running_servers(os.environ)) is not None:
        prefect, mlflow = running
        os.environ.update(client_settings(prefect, home))
        os.environ.setdefault("RLHF_MLFLOW_UI", mlflow)
        _say(f"This run in Prefect: {prefect}")
        yield lambda: servers.wait_for_prefect(prefect)
    else:
        # Not the default one: two flows that start together would both find it free.
        with servers.prefect_server(servers.any_free_port(), os.environ) as server:
            settings = client_settings(server.url, home)
            os.environ.update(settings)
            page = sign_in(server.url, settings["PREFECT_API_AUTH_STRING"])
            _say(f"This run in Prefect, while it lasts: {page}")
            yield server.wait


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
