"""A team's servers as local processes: the tiny pipeline ends with the hashes of the embedded one.

PostgreSQL holds Prefect, MLflow and the labels, an S3 server holds DVC's objects and MLflow's
artifacts. The processes are those of compose.yaml, started by its own scripts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy
from mlflow import MlflowClient

from flows import servers
from flows.environment import environment as flow_environment
from tests.integration.ordered_runs import Orders
from tests.integration.tiny_checkout import World, outputs
from tests.postgres import Postgres
from tests.stage_world import copy_tiny_repository, environment
from tests.waiting import eventually

pytestmark = [pytest.mark.team, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = ("mlflow", "dvc")
SECRETS = {f"{name}_DB_PASSWORD": f"{name.lower()}-of-the-test"
           for name in ("PREFECT", "MLFLOW", "LABELS")}  # fmt: skip


@dataclass
class Team:
    """The servers, and how a process of ours reaches them."""

    folder: Path
    orders: Orders
    mlflow: str
    reach: dict[str, str]
    runner: dict[str, str] = field(repr=False)

    @property
    def data(self) -> Path:
        """The worker's volume."""
        return self.folder / "data"


def address(postgres: Postgres, name: str, driver: str) -> str:
    password = SECRETS[f"{name.upper()}_DB_PASSWORD"]
    return f"postgresql{driver}://{name}:{password}@127.0.0.1:{postgres.port}/{name}"


def run(*command: str, cwd: Path = ROOT, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def client_environment(postgres: Postgres) -> dict[str, str]:
    """What PostgreSQL's own programs need."""
    return {
        **os.environ,
        "PATH": f"{postgres.bin}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGPASSWORD": postgres.password,
    }


@pytest.fixture(scope="module")
def unrun(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The repository as a fresh clone would have it, with tiny parameters and one round."""
    folder = tmp_path_factory.mktemp("team")
    root = folder / "main"
    copy_tiny_repository(root, rounds=1)
    world = World(root, environment(folder))
    world.git("init", "--quiet", "--initial-branch=main")
    world.git("add", "--all")
    world.git("commit", "--quiet", "-m", "tiny")
    return world


@pytest.fixture(scope="module")
def embedded(unrun: World) -> World:
    """The run that needs no server: SQLite and files."""
    root = unrun.root.parent / "embedded"
    unrun.git("clone", "--quiet", str(unrun.root), str(root))
    world = World(root, unrun.environment)
    world.run(sys.executable, "-m", "flows.local")
    return world


@pytest.fixture(scope="module")
def team(postgres: Postgres, unrun: World) -> Iterator[Team]:
    """Everything that compose.yaml starts, but for the proxy and the page."""
    folder = unrun.root.parent
    run("bash", "deploy/databases.sh", env={**client_environment(postgres), **SECRETS})
    with ExitStack() as started:
        s3 = servers.any_free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3)]
        log = folder / "s3.log"
        child = started.enter_context(servers.running("S3", command, env=dict(os.environ), log=log))
        servers.Server(child, servers.url(s3), "/moto-api/").wait()
        store = {
            "AWS_ENDPOINT_URL": servers.url(s3),
            "AWS_ACCESS_KEY_ID": "of-the-test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        env = {**unrun.environment, **store}
        run(sys.executable, "deploy/buckets.py", *BUCKETS, env=env)
        run(sys.executable, "deploy/buckets.py", *BUCKETS, env=env)

        home = folder / "prefect"
        prefect = started.enter_context(
            servers.prefect_server(
                servers.any_free_port(),
                {**flow_environment(folder), **env, "PREFECT_HOME": str(home),
                 "PREFECT_API_DATABASE_CONNECTION_URL": address(postgres, "prefect", "+asyncpg")},
            )
        )  # fmt: skip
        mlflow = started.enter_context(
            servers.mlflow_server(
                servers.any_free_port(),
                {**env, "MLFLOW_TRACKING_URI": address(postgres, "mlflow", "+psycopg"),
                 "MLFLOW_ARTIFACTS_DESTINATION": "s3://mlflow"},
                log=folder / "mlflow.log",
            )
        )  # fmt: skip
        for server in (prefect, mlflow):
            server.wait()
        reach = {
            **env,
            "DVC_SYSTEM_CONFIG_DIR": str(ROOT / "deploy/dvc"),
            "MLFLOW_TRACKING_URI": mlflow.url,
            "RLHF_FEEDBACK_STORE": address(postgres, "labels", ""),
        }
        runner = {
            **reach,
            "RLHF_DATA": str(folder / "data"),
            "PREFECT_API_URL": f"{prefect.url}/api",
            "PREFECT_AUTH_FILE": str(home / "auth"),
            "PREFECT_HOME": str(folder / "runner"),
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }
        runner.pop("RLHF_SHIPPER", None)
        yield Team(folder, Orders(prefect), mlflow.url, reach, runner)


@pytest.fixture(scope="module")
def served(team: Team, unrun: World) -> World:
    """A run that somebody ordered, done by the worker; then a fresh clone that pulled it."""
    team.data.mkdir()
    log = team.folder / "worker.log"
    for _ in range(2):
        # Started again over its volume, as with a new container.
        with log.open("ab") as output:
            worker = subprocess.Popen(
                ["bash", "deploy/worker.sh"],
                cwd=unrun.root,
                env=team.runner,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(lambda: team.orders.deployment("rlhf/rlhf"))
            assert worker.poll() is None, log.read_text()
            state = team.orders.ended(team.orders.order(name="served"))
            assert state["name"] == "Completed", f"{state['message']}\n{log.read_text()}"
        finally:
            worker.terminate()
            worker.wait()
    # Nothing but the branches and S3: what a person on another machine has.
    root = team.folder / "pulled"
    unrun.git("clone", "--quiet", "--branch", "done/served", f"{team.data}/branches.git", str(root))
    pulled = World(root, {**team.reach, "DVC_SITE_CACHE_DIR": str(team.folder / "elsewhere")})
    pulled.dvc("pull", "--quiet")
    return pulled


def test_the_run_on_the_servers_ends_with_the_hashes_of_the_embedded_one(
    embedded: World, served: World
):
    here = outputs(embedded.root)
    assert len(here) > 60
    assert outputs(served.root) == here


def test_all_objects_of_dvc_are_in_s3(served: World):
    assert "Cache and remote 'team' are in sync" in served.dvc("status", "--cloud")


def test_mlflow_has_the_runs_in_postgresql_and_the_artifacts_in_s3(
    served: World, team: Team, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    import boto3

    client = MlflowClient(team.mlflow)
    (experiment,) = [one for one in client.search_experiments() if one.name == "rlhf-rounds"]
    assert experiment.artifact_location.startswith("mlflow-artifacts:/")
    stages = {
        run.data.tags.get("rlhf.stage") for run in client.search_runs([experiment.experiment_id])
    }
    assert {"base", "sft", "reward@r1", "ppo@r1", "evaluate@r1"} <= stages
    engine = sqlalchemy.create_engine(address(postgres, "mlflow", "+psycopg"))
    with engine.connect() as connection:
        stored = connection.exec_driver_sql("SELECT count(*) FROM runs").scalar()
    engine.dispose()
    assert stored is not None
    assert stored >= len(stages)
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, team.reach[name])
    found = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket="mlflow")
    assert any(one["Key"].endswith("model.safetensors") for one in found["Contents"])


def test_no_password_is_written_down(served: World, team: Team):
    """Neither in the checkout and its runs, nor in what the processes wrote."""
    secrets = [*SECRETS.values(), team.reach["AWS_SECRET_ACCESS_KEY"]]
    paths = [*team.data.rglob("*"), *team.folder.glob("*.log"), *served.root.rglob("*")]
    texts = [path for path in paths if path.is_file() and path.stat().st_size < 5_000_000]
    assert len(texts) > 200
    for path in texts:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path


def test_a_backup_is_restored_to_empty_servers(
    served: World, team: Team, postgres: Postgres, tmp_path: Path
):
    """The objects are a folder, as those of the store in compose.yaml are."""
    labels = [sys.executable, "-m", "feedback", "token", "ana"]
    run(*labels, env=team.reach)
    objects, backups = tmp_path / "objects", tmp_path / "backups"
    (objects / "dvc").mkdir(parents=True)
    (objects / "dvc" / "object").write_text("content")
    os.setxattr(objects / "dvc" / "object", "user.etag", b"of the object")
    backups.mkdir()
    env = client_environment(postgres) | {
        "OBJECTS": str(objects), "BACKUPS": str(backups), "RLHF_DATA": str(team.data)
    }  # fmt: skip
    run("bash", "deploy/backup.sh", env=env)
    (backup,) = backups.iterdir()
    assert {path.name for path in backup.iterdir()} == {
        "prefect.dump", "mlflow.dump", "labels.dump", "branches.tar", "objects.tar", "SHA256SUMS"
    }  # fmt: skip
    restore = ["bash", "deploy/backup.sh", "restore", backup.name]
    full = subprocess.run(restore, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (full.returncode, "restore to empty servers" in full.stderr) == (2, True)

    count = "SELECT (SELECT count(*) FROM annotators), (SELECT count(*) FROM events)"
    engine = sqlalchemy.create_engine(address(postgres, "labels", "+psycopg"))
    with engine.connect() as connection:
        before = tuple(connection.exec_driver_sql(count).one())
    engine.dispose()
    for name in ("prefect", "mlflow", "labels"):
        statements = [f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name} OWNER {name}"]
        postgres.sql(*statements)
    shutil.rmtree(objects)
    objects.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    run(*restore, env=env | {"RLHF_DATA": str(data)})
    engine = sqlalchemy.create_engine(address(postgres, "labels", "+psycopg"))
    with engine.connect() as connection:
        assert tuple(connection.exec_driver_sql(count).one()) == before
    engine.dispose()
    run(*labels, env=team.reach)  # as the owner of the tables, as before
    assert os.getxattr(objects / "dvc" / "object", "user.etag") == b"of the object"
    tags = run("git", "-C", str(data / "branches.git"), "tag", env=dict(os.environ))
    assert "done/served" in tags.split()
    assert json.loads(run("git", "-C", str(data / "branches.git"), "show",
                          "done/served:metrics/final.json", env=dict(os.environ)))  # fmt: skip
