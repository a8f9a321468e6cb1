"""`python -m flows.guarded prefect|mlflow`: one of the two servers, behind `flows.guard`.

Prefect's own command lets every page of the web and every host name in; MLflow's lets every port of
this machine in, whatever `--cors-allowed-origins` says. Prefect also asks for a password here
(`flows.access`); MLflow does not, and is served without its Assistant. Files that a server makes
are for their owner only.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from flows.access import auth_string, make_private, sign_in
from flows.artifact_addresses import ByServer
from flows.environment import environment
from flows.guard import Guard, asks_only, with_sign_in, without
from tasks.tracking.sent import is_default_store

ASSISTANT = "/ajax-api/3.0/mlflow/assistant"
"""Of MLflow: lets whoever reaches the server choose a model, which may run commands as its user."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.guarded",
        description="Run Prefect's server over PREFECT_HOME, or MLflow's over MLFLOW_TRACKING_URI.",
    )
    parser.add_argument("server", choices=["prefect", "mlflow", "sign-in"], help="sign-in: print "
                        "the address that signs a browser in to Prefect")  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, metavar="N")
    parser.add_argument("--address", action="append", default=[], metavar="HOST:PORT",
                        help="another address by which it may be called")  # fmt: skip
    given = parser.parse_args(argv)
    os.umask(0o077)
    os.environ.update(environment(Path.cwd()))
    addresses = [f"127.0.0.1:{given.port}", f"localhost:{given.port}", *given.address]
    if given.server == "sign-in":
        password = auth_string(Path(os.environ["PREFECT_HOME"]))
        sys.stdout.write(f"{sign_in(f'http://{addresses[0]}', password)}\n")
        return 0
    policy = asks_only(addresses) if given.server == "prefect" else None
    app = _prefect(addresses) if given.server == "prefect" else _mlflow(addresses)
    guarded = Guard(app, addresses, policy=policy)
    uvicorn.run(guarded, host=given.host, port=given.port, log_level="warning")
    return 0


def _prefect(addresses: Sequence[str]) -> ASGIApp:
    home = Path(os.environ["PREFECT_HOME"])
    make_private(home)
    os.environ |= {
        "PREFECT_SERVER_API_AUTH_STRING": auth_string(home),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in addresses),
        "PREFECT_SERVER_UI_API_URL": f"http://{addresses[0]}/api",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }
    # Takes its settings when it is imported.
    from prefect.server.api.server import create_app  # noqa: PLC0415

    # Code of the other pages comes from another server, which `asks_only` keeps out.
    app: ASGIApp = create_app(final=True)
    return with_sign_in(without(without(app, "/docs"), "/redoc"))


def _mlflow(addresses: Sequence[str]) -> ASGIApp:
    store = os.environ["MLFLOW_TRACKING_URI"]
    artifacts, here = Path("mlartifacts"), None
    if store.startswith("sqlite:///"):
        folder = Path(store.removeprefix("sqlite:///")).parent
        if is_default_store(store):  # Of a store elsewhere, the folder is somebody's own.
            make_private(folder)
        artifacts = folder / "artifacts"
        here = artifacts.resolve().as_uri()
    # Before its modules are imported: some take these then.
    os.environ |= {
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(addresses),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in addresses),
        # Its job runner is eight more processes of 245 MB that nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    from mlflow.server import constants, handlers  # noqa: PLC0415
    from mlflow.utils.server_cli_utils import resolve_default_artifact_root  # noqa: PLC0415

    # As `mlflow server` hands them to the process that it starts.
    root = here or resolve_default_artifact_root(True, "", store)
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.REGISTRY_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: os.environ.get(
            "MLFLOW_ARTIFACTS_DESTINATION", str(artifacts)
        ),
    }
    handlers.initialize_backend_stores(store, store, root)
    from mlflow.server.fastapi_app import app  # noqa: PLC0415

    served = without(app, ASSISTANT)
    return ByServer(served, here) if here else served


if __name__ == "__main__":
    sys.exit(main())
