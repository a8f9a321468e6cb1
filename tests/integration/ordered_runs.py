"""A user's repository, a Prefect server with the runner of its flows, and orders of runs there."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from flows import servers
from flows.access import authorization
from flows.environment import environment as flow_environment
from tests.stage_world import environment
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
stages:
  sft:
    cmd: exec python stage.py sft results/baseline
    params: [run]
    deps: [stage.py]
    outs: [results/baseline]
  reward:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py reward results/reward/${key}
      params: [run]
      deps: [results/baseline, stage.py]
      outs: ["results/reward/${key}"]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: exec python stage.py evaluate results/evaluate/${key}
      params: [ppo]
      deps: ["results/reward/${key}", stage.py]
      outs: ["results/evaluate/${key}"]
"""
STAGE = """
import json, os, sys, time
from pathlib import Path
from ruamel.yaml import YAML
kind, out, run = sys.argv[1], Path(sys.argv[2]), Path.cwd().name
common = Path({common!r})
params = YAML(typ="safe").load(Path("params.yaml").read_text())
if kind == "reward" and out.name == "r1" and run in ("first", "second"):
    # Both runs have to be here before either goes on.
    (common / run).touch()
    while not all((common / name).exists() for name in ("first", "second")):
        time.sleep(0.05)
if kind == "reward" and run == "people" and not (common / "labelled").exists():
    (common / "store").write_text(os.environ["RLHF_FEEDBACK_STORE"])
    work = Path(".work") / os.environ["DVC_STAGE"]
    work.mkdir(parents=True, exist_ok=True)
    (work / "outcome.json").write_text(json.dumps({{
        "stage": os.environ["DVC_STAGE"], "status": "waiting", "code": 5, "message": "for labels",
        "seconds": 0.1, "peak_rss_bytes": 1, "ended_ms": time.time_ns() // 10**6,
        "execution": os.environ["RLHF_EXECUTION"]}}))
    sys.exit(5)
gold = params["ppo"]["kl_coef"] if kind == "evaluate" else 0.5
if kind == "sft" and run == "cancelled" and not (common / "checkpoint").exists():
    import signal
    def save(*_):
        (common / "checkpoint").write_text("saved")
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    (common / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
if kind == "sft" and run == "alone-base-seed23":
    (common / "alone").touch()
    while True:
        time.sleep(0.05)
if kind == "sft" and run == "steady-base-seed24":
    (common / run).touch()
    while not (common / f"{{run}}.go").exists():
        time.sleep(0.05)
estimate = {{"mean": gold, "low": 0.0, "high": 0.8, "n": 9}}
metrics = {{"gold": estimate, "win_rate_vs_sft": estimate, "kl": estimate, "pairs": 9,
            "accuracy_before": None, "accuracy_after": estimate}}
out.mkdir(parents=True)
(out / "metrics.json").write_text(json.dumps(metrics))
value = params["ppo"]["kl_coef"] if kind == "evaluate" else params["run"]["seed"]
(out / "made-of").write_text(f"{{value}} {{kind}}")
"""


class Checkout:
    """The repository of a user, and what can be asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "checkout"
        self.environment = environment(folder, PYTHONPATH=str(ROOT))

    def run(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=cwd or self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments)

    def dvc(self, *arguments: str, cwd: Path | None = None) -> str:
        return self.run(sys.executable, "-m", "dvc", *arguments, cwd=cwd)

    def commit_meanwhile(self) -> str:
        """Somebody commits on the branch that is checked out; the commit."""
        later = self.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "meanwhile")
        self.git("update-ref", "HEAD", later)
        return later

    def outputs(self, root: Path) -> dict[str, str]:
        return {
            path.relative_to(root).as_posix(): path.read_text()
            for path in sorted((root / "results").rglob("*"))
            if path.is_file() and path.name != ".gitignore"
        }


class Orders:
    """What Prefect's page does."""

    def __init__(self, server: servers.Server) -> None:
        password = (server.child.log.parent / "auth").read_text().strip()
        self._client = httpx.Client(
            base_url=f"{server.url}/api",
            timeout=60,
            trust_env=False,
            headers={"Authorization": authorization(password)},
        )

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        while (answer := self._client.request(method, path, json=body)).status_code == 503:
            time.sleep(0.2)
        return answer

    def deployment(self, name: str) -> dict[str, Any] | None:
        answer = self.ask("GET", f"/deployments/name/{name}")
        return answer.json() if answer.is_success else None

    def submit(self, flow: str = "rlhf", **form: Any) -> httpx.Response:
        deployment = self.deployment(f"{flow}/{flow}")
        assert deployment is not None
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return self.ask("POST", path, {"parameters": form, "enforce_parameter_schema": True})

    def order(self, flow: str = "rlhf", **form: Any) -> str:
        return str(self.submit(flow, **form).raise_for_status().json()["id"])

    def ended(self, flow_run: str, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        def look() -> Any:
            run = self.ask("GET", f"/flow_runs/{flow_run}").json()
            ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            return run if run["state_type"] in ends else None

        run: dict[str, Any] = eventually(look, seconds)
        return run["state"]

    def runs(self, name: str) -> list[str]:
        """Ids of the runs with a name."""
        body = {"flow_runs": {"name": {"any_": [name]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return [run["id"] for run in self.ask("POST", "/flow_runs/filter", body).json()]


@pytest.fixture(name="checkout", scope="module")
def checkout_fixture(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A repository with remotes and one commit; afterwards, edits that nobody saves."""
    checkout = Checkout(tmp_path_factory.mktemp("runs"))
    root = checkout.root
    (root / ".dvc").mkdir(parents=True)
    # Relative to this file, and so another place from every workspace.
    (root / ".dvc/config").write_text(
        "[core]\n    analytics = false\n    remote = shared\n"
        "['remote \"shared\"']\n    url = ../../data-remote\n"
    )
    (checkout.folder / "data-remote").mkdir()
    (root / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (root / ".gitignore").write_text("/.work/\n/results/\n/reports/\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    common = checkout.folder / "common"
    common.mkdir()
    (root / "stage.py").write_text(STAGE.format(common=str(common)))
    (root / "params/presets").mkdir(parents=True)
    (root / "params/slow.yaml").write_text("ppo: {kl_coef: 0.02}\n")
    (root / "params/asking.yaml").write_text("label: {annotators: people}\n")
    (root / "params/presets/small.yaml").write_text("ppo: {kl_coef: 0.01}\n")
    yaml = YAML()
    params = yaml.load(ROOT / "params.yaml")
    for key in list(params["rounds"])[1:]:
        del params["rounds"][key]
    params["final"] = "r1"
    yaml.dump(params, root / "params.yaml")
    checkout.git("init", "--quiet", "--initial-branch=main")
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "-m", "one")
    checkout.git("init", "--quiet", "--bare", str(checkout.folder / "origin.git"))
    checkout.git("remote", "add", "origin", str(checkout.folder / "origin.git"))
    checkout.git("push", "--quiet", "origin", "main")
    (root / "params.yaml").write_text("not yet valid: [")
    (root / "notes.txt").write_text("untracked")
    return checkout


@contextmanager
def served(checkout: Checkout) -> Iterator[Orders]:
    """A Prefect server, and the one command that registers and runs the flows."""
    home = checkout.root / ".work/prefect"
    home.mkdir(parents=True)
    env = {**flow_environment(checkout.root), **checkout.environment, "PREFECT_HOME": str(home)}
    env["MLFLOW_TRACKING_URI"] = ""
    with servers.prefect_server(servers.any_free_port(), env) as server:
        server.wait()
        orders = Orders(server)
        reach = {
            "PREFECT_API_URL": f"{server.url}/api",
            "PREFECT_API_AUTH_STRING": (home / "auth").read_text().strip(),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }
        with (checkout.folder / "runner.log").open("wb") as log:
            runner = subprocess.Popen(
                [sys.executable, "-m", "flows.deployment"],
                cwd=checkout.root,
                env={**env, **reach},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(lambda: orders.deployment("promote/promote"))
            yield orders
        finally:
            runner.terminate()
            runner.wait()


def show(checkout: Checkout, commit: str, path: str) -> Any:
    return YAML(typ="safe").load(checkout.git("show", f"{commit}:{path}"))
