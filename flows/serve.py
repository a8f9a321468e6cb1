"""`python -m flows.serve` (`make ui`): Prefect and MLflow to look at, and the flow to schedule.

Starts Prefect's server, MLflow's UI over the local store, and the process that runs the flow when
the Prefect UI asks for it; prints the addresses; ends all of it on Ctrl-C or SIGTERM. Everything
listens on 127.0.0.1 only.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

from flows import servers
from flows.access import client_settings, sign_in
from flows.environment import environment
from flows.servers import Child, Server, ServerError
from flows.supervision import Supervisor
from tasks.params.redaction import redact
from tasks.tracking.links import mlflow_ui
from tasks.tracking.shipping import tracking_uri

DEPLOYMENT = "rlhf/rlhf"
MAX_PORT = 65535
RUNNER_GRACE_SECONDS = 35.0
"""For a flow run to end with us; most of them are for the running stage's checkpoint."""

WAITING_SECONDS = 10.0
"""After its time until a run counts as waiting, and between two looks at those that do."""


class StoppedError(Exception):
    """A signal asked us to end."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve",
        description="Serve Prefect's UI, MLflow's UI and the flow of this folder on 127.0.0.1.",
    )
    parser.add_argument("--prefect-port", type=int, metavar="N", help="else 4200 or a free one")
    parser.add_argument("--mlflow-port", type=int, metavar="N", help="else 5000 or a free one")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        serve(Path.cwd(), prefect_port=args.prefect_port, mlflow_port=args.mlflow_port)
    except ServerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except StoppedError:
        _say("Stopped.")
    return 0


def serve(root: Path, *, prefect_port: int | None, mlflow_port: int | None) -> None:
    """Start everything, say where it is, and watch it until a signal comes.

    Raises:
        ServerError: it is served already, a port is taken, or one of the processes ends again and
            again.
    """
    os.environ.update(environment(root))
    # Before anything starts: it would begin the logs of the other anew.
    servers.refuse_a_second(os.environ)
    port = choose_port(prefect_port, servers.PREFECT_PORT, "Prefect", other=mlflow_port)
    with ExitStack() as running:
        mlflow = _mlflow(running, root, mlflow_port, prefect=port)
        prefect = running.enter_context(servers.prefect_server(port, os.environ))
        settings = client_settings(prefect.url, Path(os.environ["PREFECT_HOME"]))
        os.environ.update(settings)
        password = settings["PREFECT_API_AUTH_STRING"]
        _say("Starting ...")
        for server in [prefect, *mlflow]:
            server.wait()
        runner = running.enter_context(
            servers.running(
                "The process that runs the flow",
                [sys.executable, "-m", "flows.deployment"],
                env={**os.environ, "PREFECT_RUNNER_POLL_FREQUENCY": "3"},
                log=Path(os.environ["PREFECT_HOME"]) / "runner.log",
                grace_seconds=RUNNER_GRACE_SECONDS,
            )
        )
        page = deployment_page(prefect.url, password, runner)
        _say(addresses(prefect.url, password, page, _mlflow_page(root)))
        children = [prefect.child, *(server.child for server in mlflow), runner]
        _watch(children, lambda: waiting_runs(prefect.url, password))


def _mlflow(running: ExitStack, root: Path, port: int | None, *, prefect: int) -> list[Server]:
    """MLflow's UI over the local store; none where the tracking server has its own."""
    if mlflow_ui(root) is not None:
        return []
    port = choose_port(port, servers.MLFLOW_PORT, "MLflow", other=prefect)
    log = root / ".work" / "mlflow" / "server.log"
    server = running.enter_context(servers.mlflow_server(port, os.environ, log=log))
    os.environ["RLHF_MLFLOW_UI"] = server.url
    return [server]


def _mlflow_page(root: Path) -> str:
    """Where MLflow shows the runs; the bare store where it has no UI that we know of."""
    if (address := mlflow_ui(root)) is None:
        return redact(tracking_uri(root))
    # Imported here: MLflow takes a second and a half, in which the servers start.
    from tasks.tracking.view import runs_page  # noqa: PLC0415

    return runs_page(address, root)


def choose_port(asked: int | None, default: int, name: str, *, other: int | None = None) -> int:
    """The port that was asked for, else the default, else a free one, saying so.

    Args:
        asked: by whoever starts it.
        default: where nobody asked.
        name: of the server.
        other: the port that the other server has, or was asked to have.

    Raises:
        ServerError: the port that was asked for is taken, or is none.
    """
    if asked is not None:
        if not 0 < asked <= MAX_PORT:
            raise ServerError(f"port {asked}: expected 1 to {MAX_PORT}, for {name}")
        if asked == other or not servers.is_free(asked):
            raise ServerError(f"port {asked} is taken: choose another one for {name}, or none")
        return asked
    port = servers.any_free_port() if default == other else servers.free_port(default)
    if port != default:
        _say(f"Port {default} is taken; {name} listens on {port} instead.")
    return port


def deployment_page(prefect: str, password: str, runner: Child) -> str:
    """Path of the deployment's page in the UI, as soon as the runner has registered it.

    Raises:
        ServerError: the runner has ended.
    """
    url = f"{prefect}/api/deployments/name/{DEPLOYMENT}"
    while (found := servers.fetch_json(url, password)) is None:
        runner.check()
        time.sleep(0.2)
    return f"/deployments/deployment/{found['id']}"


def addresses(prefect: str, password: str, deployment: str, mlflow: str) -> str:
    """What to open in a browser, and how to stop."""
    return (
        f"Prefect  {sign_in(prefect, password)}\n"
        f"MLflow   {mlflow}\n"
        f"Flow     {sign_in(prefect, password, deployment)}\n"
        "         (run it or switch on its schedule there)\n"
        "Prefect's addresses hold your password (the part after #): keep them to yourself.\n"
        "Ctrl-C stops all three; a stage that runs keeps its checkpoint."
    )


def waiting_runs(prefect: str, password: str) -> int | None:
    """How many runs should have started `WAITING_SECONDS` ago; None while Prefect is away.

    Not the stages that runs have ordered in work pools, which wait for a worker there.
    """
    due = datetime.now(tz=UTC) - timedelta(seconds=WAITING_SECONDS)
    waiting = {
        "state": {"type": {"any_": ["SCHEDULED"]}},
        "expected_start_time": {"before_": due.isoformat()},
        "parent_task_run_id": {"is_null_": True},
    }
    found: int | None = servers.fetch_json(
        f"{prefect}/api/flow_runs/count", password, {"flow_runs": waiting}
    )
    return found


def in_line(waiting: int) -> str:
    """What the terminal says when the number of runs that wait has changed."""
    if waiting == 0:
        return "No ordered run waits any more."
    runs = "1 ordered run waits" if waiting == 1 else f"{waiting} ordered runs wait"
    spare = " Those too many can be cancelled under Runs." if waiting > 1 else ""
    return f"{runs} for those before.{spare}"


def _watch(children: Sequence[Child], count_waiting: Callable[[], int | None]) -> None:
    supervisor, known, next_count = Supervisor(children), 0, 0.0
    while True:
        now = time.monotonic()
        for line in supervisor.look(now):
            _say(line)
        if now >= next_count:
            next_count = now + WAITING_SECONDS
            waiting = count_waiting()
            if waiting is not None and waiting != known:
                known = waiting
                _say(in_line(waiting))
        time.sleep(1.0)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise StoppedError


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
