"""`python -m flows.deployment`: registers the flows with a Prefect server and runs them when asked.

`make ui` starts this beside its servers. By itself it needs the address of a server in
`PREFECT_API_URL`, and its password in `PREFECT_API_AUTH_STRING` where it asks for one: without an
address Prefect would start a server of its own, open to every user and every web page.
"""

import argparse
import os
import sys
from pathlib import Path

from flows.environment import environment
from flows.reach import ReachError, require_address, require_prefect


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    argparse.ArgumentParser(
        prog="python -m flows.deployment",
        description="Register the flows of this folder with the Prefect server that "
        "PREFECT_API_URL names, and run what is ordered there, until Ctrl-C.",
    ).parse_args(argv)
    if not os.environ.get("PREFECT_API_URL"):
        sys.stderr.write(
            "PREFECT_API_URL: expected the address of a Prefect server, found none; "
            "`make ui` starts one, and this beside it\n"
        )
        return 2
    os.environ.update(environment(Path.cwd()))
    try:
        require_address()
        # Imported here: Prefect takes its settings when it is imported.
        from flows.runner import run_orders  # noqa: PLC0415

        require_prefect()
    except ReachError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    run_orders(Path.cwd())
    return 0


if __name__ == "__main__":
    sys.exit(main())
