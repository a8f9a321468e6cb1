"""What Prefect says of runs is true, whoever is killed, and how they end is told by a webhook once.

A real server and worker, DVC, and a receiver on 127.0.0.1. Silence counts after a minute here.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from ruamel.yaml import YAML

from flows import automations, servers, silent
from flows.environment import HEARTBEAT_SECONDS
from flows.environment import environment as flow_environment
from flows.notices import ADDRESS
from tests.integration.ordered_runs import Checkout, Orders
from tests.waiting import eventually, is_alive

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SILENT_SECONDS = 2 * HEARTBEAT_SECONDS
AT_MOST_SECONDS = 180
"""Until a run that is gone is called so: a promise, not a measure of speed."""
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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
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
        assert self.receiver.states(run) == list(states)


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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("states"), Receiver())
    with world.served():
        yield world


def test_every_end_is_told_once(world: World):
    with world.worker():
        ends = {"people": "Waiting", "bad": "Blocked", "diverged": "Stopped", "wrong": "BadInput"}
        for run, end in ends.items():
            form = {"overrides": {"ppo.kl_coeff": 1}} if run == "wrong" else {}
            flow_run = world.order(run, **form)
            assert world.orders.ended(flow_run)["name"] == end
            world.told(run, end)
        (told,) = (each for each in world.receiver.told if each["run"] == "bad")
        assert told["text"] == 'bad: Blocked. sft: what "it" says'
        assert told["page"] == f"{world.server.url}/runs/flow-run/{told['flow_run']}"
        # Continued, it ends another time, as another run of Prefect's.
        assert world.orders.ended(world.order("people"))["name"] == "Completed"
        world.told("people", "Waiting", "Completed")


def test_a_stage_that_is_killed_and_tried_again_is_no_end_of_the_run(world: World):
    with world.worker():
        assert world.orders.ended(world.order("broken"))["name"] == "Completed"
        assert (world.common / "broken.tries").read_text() == "xx"
        world.told("broken", "Completed")


def test_a_long_silent_stage_is_no_crash_and_a_killed_flow_is_one(world: World):
    with world.worker():
        long, _ = world.started("long")
        began = time.monotonic()
        killed, stage = world.started("killed-flow")
        before = world.runs_of_all()
        os.kill(process_of(killed), signal.SIGKILL)
        assert world.orders.ended(killed)["name"] == "Crashed"
        eventually(lambda: world.tasks(killed) == ["Crashed"])
        eventually(lambda: not is_alive(stage))
        world.told("killed-flow", "Crashed")
        # Called dead by mistake, it is alive with its next heartbeat; then it is cancelled.
        cancelled, stage = world.started("killed-by-cancel")
        world.set_state(cancelled, "CRASHED")
        eventually(lambda: world.states(cancelled)[-2:] == ["Crashed", "Running"])
        world.set_state(cancelled, "CANCELLING")
        assert world.orders.ended(cancelled)["name"] == "Cancelled"
        assert not is_alive(stage)
        world.told("killed-by-cancel", "Cancelled")
        assert world.orders.ended(long)["name"] == "Completed"
        assert time.monotonic() - began > SILENT_SECONDS + HEARTBEAT_SECONDS, "not long enough"
        states = world.states(long)
        assert "Crashed" not in states
        assert (states.count("Running"), states[-1]) == (1, "Completed")
        world.told("long", "Completed")
        assert world.runs_of_all() == before + 1


def test_who_is_killed_while_it_goes_on_still_waits_for_people(world: World):
    with world.worker():
        killed, stage = world.goes_on("again-killed")
        world.feedback("No run waits for people.")  # It works.
        os.kill(process_of(killed), signal.SIGKILL)
        assert world.orders.ended(killed)["name"] == "Crashed"
        eventually(lambda: not is_alive(stage))
        world.feedback("Ordered to continue: again-killed")
        again = eventually(lambda: world.orders.runs("again-killed")[2:])
        assert world.orders.ended(again[0])["name"] == "Completed"
        world.feedback("No run waits for people.")


def test_who_is_cancelled_while_it_goes_on_waits_no_more(world: World):
    with world.worker():
        cancelled, _ = world.goes_on("again-cancelled")
        world.set_state(cancelled, "CANCELLING")
        assert world.orders.ended(cancelled)["name"] == "Cancelled"
        world.feedback("No run waits for people.")


def test_who_loses_the_worker_has_crashed_and_so_have_the_tasks(world: World):
    with world.worker() as worker:
        flow_run, stage = world.started("killed-worker")
        flow, before = process_of(flow_run), world.runs_of_all()
        worker.kill()
        state = world.orders.ended(flow_run)
        assert state["name"] == "Crashed"
        eventually(lambda: not is_alive(stage) and not is_alive(flow))
        eventually(lambda: world.tasks(flow_run) == ["Crashed"])
        world.told("killed-worker", "Crashed")
        assert world.runs_of_all() == before


@contextmanager
def stage_of_another_machine(world: World) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of a flow run `rlhf-stage`, as a worker of a pool starts it in its clone."""
    origin = world.folder / "origin.git"
    world.git("init", "--quiet", "--bare", "--initial-branch=main", str(origin))
    world.git("push", "--quiet", str(origin), "main")
    clone = world.folder / "clone"
    world.git("clone", "--quiet", str(origin), str(clone))
    remote = ("remote", "add", "--local", "--default", "shared", str(world.folder / "data"))
    world.dvc(*remote, cwd=clone)
    code = "from flows.stage_flow import remote_stage; remote_stage(stage='sft', revision='main')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=clone, env=world.env) as process:
        yield process
        process.kill()


def test_where_all_are_killed_the_server_says_so_by_itself(world: World):
    with world.worker() as worker, stage_of_another_machine(world) as elsewhere:
        flow_run, stage = world.started("killed-both")
        eventually(lambda: list(world.common.glob("sft-*.pid")))
        flow, before = process_of(flow_run), world.runs_of_all()
        worker.kill()
        elsewhere.kill()
        os.kill(flow, signal.SIGKILL)
        killed = time.monotonic()
        state = world.orders.ended(flow_run)
        sys.stdout.write(f"Crashed after {time.monotonic() - killed:.0f} s\n")
        assert (state["name"], state["message"]) == (
            "Crashed",
            silent.MESSAGE.format(seconds=SILENT_SECONDS),
        )
        assert not is_alive(stage)
        # Its machine is gone, and whoever ordered it on another waits: nobody else would say so.
        body = {"flows": {"name": {"any_": ["rlhf-stage"]}}}
        (there,) = world.orders.ask("POST", "/flow_runs/filter", body).json()
        assert world.orders.ended(there["id"])["message"] == state["message"]
        world.told("killed-both", "Crashed")
        assert world.runs_of_all() == before
    with world.worker():
        eventually(lambda: world.tasks(flow_run) == ["Crashed"])
        time.sleep(5)
        assert world.runs_of_all() == before
    world.told("killed-both", "Crashed")


@pytest.mark.slow
def test_where_the_server_is_killed_too_it_says_so_when_it_is_back(tmp_path: Path):
    world = World(tmp_path, Receiver())
    with world.served(), world.worker() as worker:
        flow_run, stage = world.started("killed-with-all")
        flow, before = process_of(flow_run), world.runs_of_all()
        kill_together(flow, worker.pid, world.server.child.process.pid)
    with world.served():
        began = time.monotonic()
        state = world.orders.ended(flow_run)
        assert time.monotonic() - began < AT_MOST_SECONDS
        assert (state["name"], state["message"]) == (
            "Crashed",
            silent.MESSAGE.format(seconds=SILENT_SECONDS),
        )
        assert not is_alive(stage)
        # The flow is told by the kernel, and has no server to tell.
        with world.worker() as worker:
            eventually(lambda: world.tasks(flow_run) == ["Crashed"])
            flow_run, stage = world.started("killed-with-the-server")
            kill_together(worker.pid, world.server.child.process.pid)
    with world.served():
        began = time.monotonic()
        # `worker` makes the automation anew, which would know of no heartbeat.
        assert world.orders.ended(flow_run)["name"] == "Crashed"
        assert time.monotonic() - began < AT_MOST_SECONDS
        assert not is_alive(stage)
        with world.worker():
            eventually(lambda: world.tasks(flow_run) == ["Crashed"])
            time.sleep(5)
            assert world.runs_of_all() == before + 1


def kill_together(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def test_a_run_can_be_cancelled_after_the_server_was_away(world: World):
    with world.worker():
        flow_run, stage = world.started("killed-after-a-restart")
        server = world.server.child
        server.process.kill()
        time.sleep(20)
        server.start_again()
        world.server.wait()
        world.set_state(flow_run, "CANCELLING")
        assert world.orders.ended(flow_run, AT_MOST_SECONDS)["name"] == "Cancelled"
        assert not is_alive(stage)
        world.told("killed-after-a-restart", "Cancelled")
