"""A real server and worker of Prefect, DVC, and a receiver of webhooks, all on 127.0.0.1."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from flows import automations, servers, silent
from flows.environment import HEARTBEAT_SECONDS
from flows.environment import environment as flow_environment
from flows.notices import ADDRESS
from tests.integration.ordered_runs import Checkout, Orders
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SILENT_SECONDS = 2 * HEARTBEAT_SECONDS
PIPELINE = """
stages:
  sft:
    cmd: exec python stage.py
    params: [run]
    deps: [stage.py]
    outs: [results/baseline]
"""
STAGE = """
import json, os, sys, time
from pathlib import Path
from tasks.workspace.processes import hear_of_the_parents_death
hear_of_the_parents_death()  # As every stage does.
run, common = Path.cwd().name, Path({common!r})
tries = common / f"{{run}}.tries"
tries.open("a").write("x")
(common / f"{{run}}.pid").write_text(str(os.getpid()))
if run == "long":
    time.sleep({long})
if run.startswith(("killed", "sft-")):
    time.sleep(3600)
if run.startswith("again") and len(tries.read_text()) == 2:
    time.sleep(3600)
endings = {{"people": "waiting", "bad": "blocked", "diverged": "stopped"}}
endings |= {{"again-killed": "waiting", "again-cancelled": "waiting"}}
codes = {{"waiting": 5, "blocked": 4, "stopped": 3}}
if run in endings and len(tries.read_text()) == 1:
    status = endings[run]
    work = Path(".work") / os.environ["DVC_STAGE"]
    work.mkdir(parents=True, exist_ok=True)
    (work / "outcome.json").write_text(json.dumps({{
        "stage": os.environ["DVC_STAGE"], "status": status, "code": codes[status],
        "message": 'what "it" says', "seconds": 0.1, "peak_rss_bytes": 1,
        "ended_ms": time.time_ns() // 10**6, "execution": os.environ["RLHF_EXECUTION"]}}))
    sys.exit(codes[status])
if run == "broken" and len(tries.read_text()) == 1:
    os.kill(os.getpid(), 9)
out = Path("results/baseline")
out.mkdir(parents=True)
(out / "made").write_text(run)
"""


class Receiver:
    """Somebody's webhook: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((servers.HOST, 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://{servers.HOST}:{self.server.server_port}/hook"

    def states(self, run: str) -> list[str]:
        return [each["state"] for each in self.told if each["run"] == run]


class World(Checkout):
    """A checkout, a server, and workers that come and go."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        super().__init__(folder)
        self.receiver = receiver
        self.seeds: list[str] = []
        self.common = folder / "common"
        self.common.mkdir()
        (self.root / ".dvc").mkdir(parents=True)
        (self.root / ".dvc/config").write_text("[core]\n    analytics = false\n")
        (self.root / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
        (self.root / ".gitignore").write_text("/.work/\n/results/\n/reports/\n")
        (self.root / "dvc.yaml").write_text(PIPELINE)
        stage = STAGE.format(common=str(self.common), long=SILENT_SECONDS + 40)
        (self.root / "stage.py").write_text(stage)
        yaml = YAML()
        yaml.dump(yaml.load(ROOT / "params.yaml"), self.root / "params.yaml")
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "one")
        self.home = self.root / ".work/prefect"
        self.home.mkdir(parents=True)
        self.port = servers.any_free_port()

    @contextmanager
    def served(self) -> Iterator[None]:
        env = {**flow_environment(self.root), **self.environment, "PREFECT_HOME": str(self.home)}
        self.env = {**env, "MLFLOW_TRACKING_URI": "", ADDRESS: self.receiver.address}
        with servers.prefect_server(self.port, self.env) as server:
            server.wait()
            self.server, self.orders = server, Orders(server)
            self.env |= {
                "PREFECT_API_URL": f"{server.url}/api",
                "PREFECT_API_AUTH_STRING": (self.home / "auth").read_text().strip(),
                "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            }
            yield

    @contextmanager
    def worker(self) -> Iterator["subprocess.Popen[bytes]"]:
        with self.client() as client:
            automations.remove(client, silent.NAME)
        with (self.folder / "runner.log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "flows.deployment"],
                cwd=self.root,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            # What is registered last by the first worker, and anew by each.
            eventually(lambda: self.orders.deployment("promote/promote"))
            with self.client() as client:
                eventually(lambda: client.read_automations_by_name(silent.NAME))
                automations.register(client, silent.crashed(SILENT_SECONDS))
            yield worker
        finally:
            worker.terminate()
            worker.wait()

    @contextmanager
    def client(self) -> Iterator[Any]:
        settings = {
            PREFECT_API_URL: self.env["PREFECT_API_URL"],
            PREFECT_API_AUTH_STRING: self.env["PREFECT_API_AUTH_STRING"],
        }
        with temporary_settings(settings), get_client(sync_client=True) as client:
            yield client

    def order(self, run: str, **form: Any) -> str:
        """Order a run of its own seed, so that it gets nothing from DVC's cache; its id."""
        if run not in self.seeds:
            self.seeds.append(run)
        return self.orders.order(name=run, seeds=[self.seeds.index(run)], **form)

    def started(self, run: str) -> tuple[str, int]:
        """Order a run; its id, and the process of its stage once that runs."""
        flow_run = self.order(run)
        found = self.common / f"{run}.pid"
        eventually(lambda: found.exists() and found.read_text())
        return flow_run, int(found.read_text())

    def goes_on(self, run: str) -> tuple[str, int]:
        """Order a run that has ended as `Waiting`; its id and the process of its stage."""
        assert self.orders.ended(self.order(run))["name"] == "Waiting"
        (self.common / f"{run}.pid").unlink()
        return self.started(run)

    def feedback(self, answer: str) -> None:
        """Order what the page's event orders: the flow that looks for runs that wait."""
        state = self.orders.ended(self.orders.order("rlhf-on-feedback"))
        assert state["message"] == answer

    def set_state(self, flow_run: str, kind: str) -> None:
        body = {"state": {"type": kind}, "force": kind == "CRASHED"}
        self.orders.ask("POST", f"/flow_runs/{flow_run}/set_state", body).raise_for_status()

    def states(self, flow_run: str) -> list[str]:
        answer = self.orders.ask("GET", f"/flow_run_states/?flow_run_id={flow_run}")
        return [state["name"] for state in answer.json()]

    def tasks(self, flow_run: str) -> list[str]:
        body = {"flow_runs": {"id": {"any_": [flow_run]}}}
        found = self.orders.ask("POST", "/task_runs/filter", body).json()
        return [task["state_name"] for task in found]

    def runs_of_all(self) -> int:
        return int(self.orders.ask("POST", "/flow_runs/count", {}).json())

    def told(self, run: str, *states: str) -> None:
        """These ends have been told of a run, each once; waits a while for more."""
        eventually(lambda: len(self.receiver.states(run)) >= len(states))
        time.sleep(2)
        assert self.receiver.states(run) == list(states), self.receiver.told


def process_of(flow_run: str) -> int:
    """The process of a flow run."""
    wanted = f"PREFECT__FLOW_RUN_ID={flow_run}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0") and (
                b"prefect.engine" in (path / "cmdline").read_bytes()
                or b"prefect.flow_engine" in (path / "cmdline").read_bytes()
            ):
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"no process runs {flow_run}")
