"""Models of another machine: by MLflow's address alone, into a store that has been used locally."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows import servers
from tasks.tracking.shipping import ship
from tasks.tracking.spool import Output, open_spool
from tasks.tracking.store import connect, logged_files
from tests.integration.tracked import LOAD_AGAIN, model_folders_fixture, start  # noqa: F401

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
OTHER_MACHINE = """
import json, sys
from pathlib import Path
store, work = sys.argv[1:3]
def guard(event, arguments):
    # Whoever opens or makes anything below the store's folder is on its machine.
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename"):
        if str(arguments[0]).startswith(store):
            raise PermissionError(f"{event}: {arguments[0]} is another machine's")
sys.addaudithook(guard)
"""
SENDS = """
from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.shipping import ship_all
states = [result.state for result in ship_all(Path(work))]
print(json.dumps([*states, tag_outputs(Path(work))]))
"""
LOADS = f"sys.argv = ['', *sys.argv[3:]]\n{LOAD_AGAIN}"
LOCK = """
schema: '2.0'
stages:
  ppo@r1:
    cmd: python -m tasks.ppo --round r1
    deps: [{path: data/rounds/r1/preferences, md5: 0123456789abcdef0123456789abcdef.dir}]
    outs: [{path: models/policy, md5: feed.dir}]
"""


def elsewhere(code: str, store: Path, work: Path, server: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_MACHINE + code, str(store), str(work), *arguments],
        env={**os.environ, "MLFLOW_TRACKING_URI": server, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_models_of_another_machine_are_in_the_store_and_come_from_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_folders: Path,
) -> None:
    store = tmp_path / "served"
    here = f"sqlite:///{store}/mlflow.db"
    # A stage of this machine was the first to use the store, without any server.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", here)
    spool = open_spool(tmp_path / "local", start("sft"))
    spool.finish("FINISHED", {"loss": 1.0}, [])
    assert ship(spool.folder).state == "complete"
    work = tmp_path / "elsewhere"
    shutil.copytree(model_folders, work / "models")
    (work / "dvc.lock").write_text(LOCK)
    outputs = [
        Output("policy", work / "models/policy"),
        Output("reward_model", work / "models/reward"),
    ]
    spool = open_spool(work, start())
    spool.finish("FINISHED", {"gold": 2.0}, outputs)

    env = {**os.environ, "MLFLOW_TRACKING_URI": here}
    with servers.mlflow_server(servers.any_free_port(), env, log=tmp_path / "log") as server:
        server.wait()
        assert json.loads(elsewhere(SENDS, store, work, server.url)) == ["complete", 1]
        sent = json.loads((spool.folder / "sent.json").read_text())["models"]
        assert len(sent) == 2
        policy, reward = (f"models:/{sent[f'models/{name}']}" for name in ("policy", "reward"))
        loaded = json.loads(
            elsewhere(LOADS, store, work, server.url, policy, reward, str(model_folders))
        )
        assert loaded["same"]
        address = MlflowClient(server.url).get_logged_model(sent["models/policy"])
        assert address.artifact_location.startswith("mlflow-artifacts:/")
        # What somebody registers by such an address, too, is kept as a folder.
        client = MlflowClient(server.url)
        client.create_registered_model("mine")
        source = f"{address.artifact_location}/model"
        client.create_model_version("mine", source, model_id=address.model_id)

    # Without the server, the store of this machine has them where it has its own.
    local = connect(here)
    for model, name in zip(sent.values(), ("policy", "reward"), strict=True):
        folder = logged_files(local, model)
        assert folder is not None
        assert folder.is_relative_to(store / "artifacts")
        (kept,) = folder.rglob("model.safetensors")
        assert kept.read_bytes() == (model_folders / name / "model.safetensors").read_bytes()
    assert local.client.get_model_version("mine", "1").source.startswith(f"file://{store}/")
    assert "mlflow-artifacts" not in str(local.client.search_runs([local.experiment]))
