"""Stages on other machines: clones that git, DVC's remote and two servers alone connect.

The remote of DVC is a local S3 server (moto's), git's a bare repository. A third clone runs the
same commit by itself; whatever a worker has made must have the same hashes.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows import servers
from flows.environment import environment as flow_environment
from tasks.tracking.store import connect, logged_files
from tasks.workspace.dvc_lockfile import read_lock
from tests.stage_world import copy_tiny_repository, environment
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.long

BUCKET = "rounds"
WEIGHTS = "model.safetensors"
KEYS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "region_name": "us-east-1",
}


class Machines:
    """A repository with its remotes, and clones of it that share nothing else."""

    def __init__(self, folder: Path, s3: str) -> None:
        self.folder = folder
        self.environment = environment(
            folder,
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="us-east-1",
            MLFLOW_TRACKING_URI=f"sqlite:///{folder / 'mlflow.db'}",
            PYTHONPATH=os.environ.get("PYTHONPATH", ""),
        )
        del self.environment["RLHF_SHIPPER"]
        root = folder / "driver"
        copy_tiny_repository(root, rounds=1)
        self.git(root, "init", "--quiet", "--initial-branch=main")
        with (root / ".dvc/config").open("a") as config:
            # In DVC's words: `dvc remote add --default shared s3://...`.
            config.write("['remote \"shared\"']\n    url = s3://" + BUCKET + "/dvc\n")
            config.write(f"    endpointurl = {s3}\n")
        text = (root / ".dvc/config").read_text()
        (root / ".dvc/config").write_text(text.replace("[core]\n", "[core]\n    remote = shared\n"))
        self.git(root, "add", "--all")
        self.git(root, "commit", "--quiet", "-m", "one")
        self.origin = folder / "origin.git"
        self.git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        self.git(root, "remote", "add", "origin", f"file://{self.origin}")
        self.git(root, "push", "--quiet", "origin", "main")

    def clone(self, name: str) -> Path:
        if not (self.folder / name).exists():
            self.git(self.folder, "clone", "--quiet", f"file://{self.origin}", name)
        return self.folder / name

    def git(self, where: Path, *arguments: str) -> str:
        return self.run(where, "git", *arguments)

    def run(self, where: Path, *command: str, code: int = 0, **settings: str) -> str:
        done = subprocess.run(
            command,
            cwd=where,
            env={**self.environment, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == code, done.stdout
        return done.stdout.strip()

    def python(self, where: Path, *arguments: str, code: int = 0, **settings: str) -> str:
        return self.run(where, sys.executable, *arguments, code=code, **settings)

    def remote_stage(self, stage: str, revision: str, *, code: int = 0) -> str:
        command = ("-m", "flows.remote_stage", stage, "--revision", revision)
        return self.python(self.clone("worker"), *command, code=code)

    def branches(self) -> list[str]:
        listed = self.git(self.origin, "for-each-ref", "--format=%(refname:short)", "refs/heads")
        return listed.splitlines()

    def answer(self, branch: str, path: str) -> str:
        return self.git(self.origin, "show", f"{branch}:{path}")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server of our own, with an empty bucket."""
    pytest.importorskip("dvc_s3", reason="needs dvc-s3 and moto (the extras s3 and dev)")
    pytest.importorskip("moto")
    import boto3

    port = servers.any_free_port()
    command = [sys.executable, "-m", "moto.server", "--host", servers.HOST, "--port", str(port)]
    folder = tmp_path_factory.mktemp("s3")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://{servers.HOST}:{port}"
    eventually(lambda: servers.is_healthy(address))
    boto3.client("s3", endpoint_url=address, **KEYS).create_bucket(Bucket=BUCKET)
    yield address
    server.terminate()
    server.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, s3: str) -> Machines:
    """The driver has run and published `prepare` and `base`."""
    made = Machines(tmp_path_factory.mktemp("machines"), s3)
    driver = made.folder / "driver"
    made.run(driver, sys.executable, "-m", "dvc", "repro", "--quiet", "base")
    made.run(driver, sys.executable, "-m", "dvc", "push", "--quiet")
    made.git(driver, "add", "dvc.lock")
    made.git(driver, "commit", "--quiet", "--message=two")
    made.git(driver, "push", "--quiet", "origin", "main")
    return made


# --- The command ---------------------------------------------------------------------------------


def test_a_stage_in_another_clone_comes_back_with_the_hashes_of_a_run_here(machines: Machines):
    said = machines.remote_stage("sft", "main")

    (branch,) = [name for name in machines.branches() if name.startswith("stages/sft-")]
    assert branch in said
    driver = machines.folder / "driver"
    machines.run(driver, sys.executable, "-m", "dvc", "repro", "--quiet", "sft")
    assert machines.answer(branch, "dvc.lock") == (driver / "dvc.lock").read_text().strip()
    assert json.loads(machines.answer(branch, ".work/sft/outcome.json"))["status"] == "done"
    # The worker has kept neither a workspace nor a commit of its own, and does nothing twice.
    worker = machines.clone("worker")
    assert sorted(path.name for path in (worker / ".work/stages").iterdir()) == [".lock"]
    assert machines.git(worker, "status", "--porcelain") == ""
    assert "answered before" in machines.remote_stage("sft", "main")


@pytest.fixture
def no_init() -> Iterator[None]:
    """As in a container without an init: orphans that have ended stay zombies (they are ours)."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("no_init")
def test_a_stage_that_is_killed_there_resumes_there_and_makes_the_same_bytes(machines: Machines):
    driver, worker = machines.folder / "driver", machines.clone("worker")
    waiting = worker / ".work/stages"
    yaml = YAML()
    params = yaml.load(driver / "params.yaml")
    params["sft"]["epochs"] = 60
    yaml.dump(params, driver / "params.yaml")
    machines.git(driver, "commit", "--quiet", "--message=longer", "params.yaml")
    machines.git(driver, "push", "--quiet", "origin", "main")
    before = machines.branches()
    wrong = [sys.executable, "-m", "flows.remote_stage", "sft", "--revision", "nope"]
    done = subprocess.run(
        wrong, cwd=worker, env=machines.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2, "sft: --revision: no branch, tag or commit 'nope' here or on origin",
    )  # fmt: skip
    command = [sys.executable, "-m", "flows.remote_stage", "sft", "--revision", "main"]
    with subprocess.Popen(command, cwd=worker, env=machines.environment) as process:
        # It trains; what it has done by then, it saves when the kernel tells it of the death.
        logged = "sft-*/.work/spool/sft/*/metrics.jsonl"
        eventually(lambda: any(path.stat().st_size for path in waiting.glob(logged)))
        process.send_signal(signal.SIGKILL)
    eventually(lambda: list(waiting.glob("sft-*/.work/sft/*/step-*")))
    assert machines.branches() == before

    said = machines.remote_stage("sft", "main")

    assert "resum" in said
    (branch,) = set(machines.branches()) - set(before)
    machines.run(driver, sys.executable, "-m", "dvc", "repro", "--quiet", "sft")
    assert machines.answer(branch, "dvc.lock") == (driver / "dvc.lock").read_text().strip()
    machines.git(driver, "reset", "--quiet", "--hard", "HEAD~1")
    machines.git(driver, "push", "--quiet", "--force", "origin", "main")


def test_errors_name_what_is_missing_and_leave_dvc_lock_alone(machines: Machines):
    assert "no branch, tag or commit 'nonsense'" in machines.remote_stage("sft", "nonsense", code=2)
    assert "no stage dance" in machines.remote_stage("dance", "main", code=2)
    said = machines.remote_stage("report", "main", code=2)
    assert said == "report: it reads data/rounds, which neither git nor dvc.lock has"
    (branch,) = [name for name in machines.branches() if name.startswith("stages/report-")]
    assert json.loads(machines.answer(branch, ".work/report/ending.json"))["how"] == "bad_input"
    assert machines.answer(branch, "dvc.lock") == machines.answer("main", "dvc.lock")


# --- The flow with two pools ---------------------------------------------------------------------


@contextmanager
def worker(machines: Machines, pool: str, settings: dict[str, str]) -> Iterator[Path]:
    """A machine that works for a pool: a clone with a Prefect worker."""
    clone = machines.clone(f"worker-{pool}")
    with (machines.folder / f"{pool}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.worker", pool],
            cwd=clone,
            env={**machines.environment, **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield clone
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_the_flow_with_two_pools_does_the_whole_pipeline_and_makes_the_same_bytes(
    machines: Machines,
):
    driver, alone = machines.clone("ordering"), machines.clone("alone")
    for clone in (driver, alone):
        machines.git(clone, "checkout", "--quiet", "HEAD~1")  # Nothing has run there yet.
    branches = machines.branches()
    home = machines.folder / "prefect"
    home.mkdir()
    env = {**flow_environment(driver), **machines.environment, "PREFECT_HOME": str(home)}
    with ExitStack() as running:
        server = running.enter_context(servers.prefect_server(servers.any_free_port(), env))
        server.wait()
        password = (home / "auth").read_text().strip()
        # A store that is used without a server, too; the machines have the server's address alone.
        store = f"sqlite:///{machines.folder / 'served/mlflow.db'}"
        experiment = connect(store).experiment
        mlflow = running.enter_context(
            servers.mlflow_server(
                servers.any_free_port(),
                {**env, "MLFLOW_TRACKING_URI": store},
                log=machines.folder / "mlflow.log",
            )
        )
        mlflow.wait()
        settings = {
            "MLFLOW_TRACKING_URI": mlflow.url,
            "PREFECT_API_URL": f"{server.url}/api",
            "PREFECT_API_AUTH_STRING": password,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        clones = [
            running.enter_context(worker(machines, pool, settings)) for pool in ("gpu", "cpu")
        ]
        for pool in ("gpu", "cpu"):
            page = f"{server.url}/api/deployments/name/rlhf-stage/{pool}"
            eventually(lambda page=page: servers.fetch_json(page, password))
        said = machines.python(
            driver, "-m", "flows.local", **settings, RLHF_GPU_POOL="gpu", RLHF_CPU_POOL="cpu"
        )
        found = servers.fetch_json(f"{server.url}/api/flow_runs/filter", password, {"limit": 100})

    machines.run(alone, sys.executable, "-m", "dvc", "repro", "--quiet")
    assert (driver / "dvc.lock").read_text() == (alone / "dvc.lock").read_text(), said
    outputs = {path for locked in read_lock(alone).values() for path in locked.outs}
    assert {path for path in outputs if not (driver / path).exists()} == set()
    for path in sorted((alone / "metrics").glob("*.json")):
        assert (driver / "metrics" / path.name).read_bytes() == path.read_bytes()
    # Each stage has run once, as a flow run in its pool.
    runs = [run for run in found if run["work_pool_name"]]
    assert {run["state_name"] for run in runs} == {"Completed"}
    assert sorted((run["name"].split()[0], run["work_pool_name"]) for run in runs) == sorted(
        (stage, "gpu" if stage.partition("@")[0] in gpu_stages(alone) else "cpu")
        for stage in read_lock(alone)
    )
    # Their models are in that store, on the disk of its server.
    models = connect(store).client.search_logged_models([experiment])
    logged = [logged_files(connect(store), model.model_id) for model in models]
    found = [(folder / WEIGHTS).read_bytes() for folder in logged if folder]
    made = [path.read_bytes() for path in (alone / "models").rglob(WEIGHTS)]
    base = (alone / "models/base" / WEIGHTS).read_bytes()
    assert sorted([*found, base]) == sorted(made)
    # Nobody has left anything behind.
    assert machines.branches() == branches
    assert not [path for clone in clones for path in (clone / ".work/stages").glob("*-*")]


def gpu_stages(root: Path) -> set[str]:
    listed = YAML(typ="safe").load(root / "dvc.yaml")["stages"]
    return {
        name for name, entry in listed.items() if entry.get("do", entry).get("meta", {}).get("gpu")
    }
