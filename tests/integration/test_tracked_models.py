"""Models that stages publish arrive in a real MLflow, whole, known by their hash and loadable."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from mlflow import MlflowClient

from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.sent import load_sent
from tasks.tracking.shipper import Shipper
from tasks.tracking.shipping import ship, ship_all, tracking_uri
from tasks.tracking.spool import Output, RunStart, Spool, open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    LOAD_AGAIN,
    artifacts,
    model_folders_fixture,
    root_fixture,
    run_of,
    runs_of,
    start,
)
from tests.waiting import eventually


def published_policy(root: Path, model_folders: Path) -> tuple[Path, Spool]:
    """A policy where its stage writes it, and the spool of the run that has."""
    published = root / "models" / "policy"
    shutil.copytree(model_folders / "policy", published)
    spool = open_spool(root, start())
    spool.finish("FINISHED", {}, [Output("policy", published)])
    return published, spool


@pytest.mark.long
def test_models_are_loadable_by_mlflow_alone_in_a_fresh_offline_process(
    root: Path, model_folders: Path
) -> None:
    spool = open_spool(root, start())
    outputs = [
        Output("policy", model_folders / "policy"),
        Output("reward_model", model_folders / "reward"),
    ]
    spool.finish("FINISHED", {}, outputs)
    assert ship(spool.folder, models=False).state == "open"
    assert ship(spool.folder).state == "complete"
    sent = json.loads((spool.folder / "sent.json").read_text())
    policy, reward = (f"models:/{sent['models'][str(output.path)]}" for output in outputs)

    done = subprocess.run(
        [sys.executable, "-c", LOAD_AGAIN, policy, reward, str(model_folders)],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
            "PYTHONPATH": "",
        },
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded["same"]
    assert loaded["text"].startswith("w1")
    assert loaded["mean"] == 0.25
    assert loaded["served"] == pytest.approx(loaded["raw"], rel=1e-4)
    stored = {path.suffix for path in artifacts(root, sent["models"]) if path.is_file()}
    assert stored == {".safetensors", ".json", ".txt", ".yaml", ".py", ""}  # "" is MLmodel
    assert not (spool.folder / "outputs").exists()


def test_a_model_is_kept_for_sending_when_a_later_run_replaces_it(
    root: Path, model_folders: Path
) -> None:
    published, spool = published_policy(root, model_folders)
    weights = (published / "model.safetensors").read_bytes()
    subprocess.run(["rm", "-r", str(published)], check=True)  # as dvc does before it runs again

    assert ship(spool.folder).state == "complete"
    sent = json.loads((spool.folder / "sent.json").read_text())
    found = [path for path in artifacts(root, sent["models"]) if path.name == "model.safetensors"]
    assert [path.read_bytes() == weights for path in found] == [True]


def test_adapters_of_an_ensembles_members_arrive_in_their_folders(
    root: Path, model_folders: Path
) -> None:
    """A member's folder begins with that of its adapter, in the order of names."""
    published = root / "models" / "reward"
    for member in (published, published / "member_2"):
        shutil.copytree(model_folders / "reward", member)
        (member / "adapter").mkdir()
        (member / "adapter/adapter_model.safetensors").write_bytes(b"weights")
    spool = open_spool(root, start("reward@r1"))
    spool.finish("FINISHED", {}, [Output("reward_model", published)])

    assert ship(spool.folder).state == "complete"

    sent = json.loads((spool.folder / "sent.json").read_text())
    found = [path for path in artifacts(root, sent["models"]) if path.parent.name == "adapter"]
    assert {path.parent.parent.name for path in found} == {"model", "member_2"}
    assert [path.read_bytes() for path in found] == [b"weights"] * 2


@pytest.mark.parametrize("still_here", [True, False])
def test_a_run_that_is_sent_to_its_server_once_more_has_one_model_and_lacks_nothing(
    root: Path, model_folders: Path, still_here: bool
) -> None:
    """As after an hour with another store, or where the server's address has changed."""
    published, spool = root / "models" / "policy", open_spool(root, start())
    shutil.copytree(model_folders / "policy", published)
    (root / "results").mkdir()
    (root / "results/metrics.json").write_text("{}")
    outputs = [Output("policy", published), Output("artifact", root / "results/metrics.json")]
    hashes = {"models/policy": "feed.dir"}
    spool.finish("FINISHED", {}, outputs, hashes=hashes)
    assert ship(spool.folder).state == "complete"
    models = load_sent(spool.folder, tracking_uri(root)).models
    (root / "dvc.lock").write_text(LOCK)
    if not still_here:
        shutil.rmtree(published)
        (root / "results/metrics.json").unlink()
    (spool.folder / "sent.json").unlink()

    assert ship(spool.folder).state == "complete"

    sent = load_sent(spool.folder, tracking_uri(root))
    assert sent.models == models
    client, run = MlflowClient(tracking_uri(root)), run_of(root, "ppo@r1")
    assert [one.model_id for one in run.outputs.model_outputs] == list(models.values())
    assert len(client.search_logged_models([run.info.experiment_id])) == 1
    assert "outputs.gone" not in run.data.tags


def test_output_hashes_reach_the_run_and_the_model_that_dvc_lock_describes(
    root: Path, model_folders: Path
) -> None:
    _, spool = published_policy(root, model_folders)
    other = RunStart("ppo@r1", "run-0", {}, {"data/rounds/r1/preferences": "another"}, {})
    open_spool(root, other).finish("FINISHED", {}, [])
    ship_all(root)
    (root / "dvc.lock").write_text(LOCK)
    assert tag_outputs(root) == 1
    assert tag_outputs(root) == 0

    client = MlflowClient(tracking_uri(root))
    tagged = runs_of(root, "tags.`dvc.out.models/policy` = 'feed.dir'")
    assert [run.data.params["ppo.kl_coef"] for run in tagged] == ["0.05"]
    sent = json.loads((spool.folder / "sent.json").read_text())
    assert client.get_logged_model(sent["models"]["models/policy"]).tags["dvc.md5"] == "feed.dir"


LOCK = (
    "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: python -m tasks.ppo --round r1\n    deps:\n"
    "    - {path: data/rounds/r1/preferences, md5: 0123456789abcdef0123456789abcdef.dir}\n"
    "    outs:\n    - {path: models/policy, md5: feed.dir}\n"
)


def large_policy(root: Path, model_folders: Path) -> tuple[Spool, Path]:
    """The spool of a policy with a large file, and what DVC will keep of that one."""
    published, large = root / "models" / "policy", Random(0).randbytes((1 << 20) + 1)
    published.parent.mkdir()
    subprocess.run(["cp", "-r", str(model_folders / "policy"), str(published)], check=True)
    (published / "value_head.safetensors").write_bytes(large)
    spool = open_spool(root, start())
    spool.finish("FINISHED", {}, [Output("policy", published)])
    md5 = hashlib.md5(large).hexdigest()
    kept = root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    kept.parent.mkdir(parents=True)
    kept.write_bytes(large)
    listed = root / ".dvc/cache/files/md5/fe/ed.dir"
    listed.parent.mkdir(exist_ok=True)
    listed.write_text(json.dumps([{"md5": md5, "relpath": "value_head.safetensors"}]))
    return spool, kept


def linked(root: Path, spool: Spool, kept: Path) -> list[str]:
    """The names of MLflow's files that are links to DVC's object."""
    models = load_sent(spool.folder, tracking_uri(root)).models
    files = [path for path in artifacts(root, models) if path.is_file()]
    return [path.name for path in files if path.samefile(kept)]


def test_large_weights_are_links_to_dvcs_once_their_hash_is_known(
    root: Path, model_folders: Path
) -> None:
    spool, kept = large_policy(root, model_folders)
    (root / "dvc.lock").write_text(LOCK)
    ship(spool.folder, models=False)
    assert tag_outputs(root) == 0, "a run that is tagged now would leave its model without"
    ship_all(root)
    assert tag_outputs(root) == 1
    assert linked(root, spool, kept) == ["value_head.safetensors"]


def test_they_become_links_while_the_pipeline_runs(root: Path, model_folders: Path) -> None:
    """DVC writes its lock in place: what is there for a moment may be a part of it."""
    spool, kept = large_policy(root, model_folders)
    lock = root / "dvc.lock"
    shipper = Shipper(root, every=0.05)
    eventually(lambda: load_sent(spool.folder, tracking_uri(root)).models_done)
    lock.write_text(LOCK[: LOCK.index("feed.dir") + 3])
    lock.write_text(LOCK)
    tagged = eventually(lambda: load_sent(spool.folder, tracking_uri(root)).outs)
    assert tagged == {"models/policy": "feed.dir"}
    assert linked(root, spool, kept) == ["value_head.safetensors"]
    assert shipper.close(deadline_seconds=300)


def test_what_an_interrupted_attempt_sent_does_not_count_for_the_one_that_resumed(
    root: Path, model_folders: Path
) -> None:
    """Its end has arrived, with no models; of the new end and its model nothing has."""
    interrupted = open_spool(root, start())
    interrupted.finish("KILLED", {}, [])
    ship_all(root)
    spool, kept = large_policy(root, model_folders)
    assert spool.folder == interrupted.folder
    (root / "dvc.lock").write_text(LOCK)
    assert tag_outputs(root) == 0
    ship_all(root)
    assert tag_outputs(root) == 1
    assert linked(root, spool, kept) == ["value_head.safetensors"]


def test_a_spool_that_is_damaged_later_does_not_stop_what_others_send(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = open_spool(root, start())
    broken.finish("FINISHED", {}, [])
    ship_all(root)
    (broken.folder / "start.json").write_text("{")
    (root / "dvc.lock").write_text(LOCK)
    shipper = Shipper(root, every=0.05)
    eventually(lambda: "Output hashes are not in MLflow yet" in caplog.text)
    later = open_spool(root, start("sft"))
    later.finish("FINISHED", {}, [])
    eventually(lambda: load_sent(later.folder, tracking_uri(root)).models_done)
    assert shipper.close(deadline_seconds=300)


@pytest.mark.parametrize("noted", [True, False])
def test_an_older_commit_s_hashes_go_to_the_run_that_wrote_them(root: Path, noted: bool) -> None:
    """Two runs of one stage on the same inputs, of which git has the older one checked out.

    Runs of an earlier version noted no hashes; there the params say which one it was.
    """
    spools = {}
    for kl_coef, digest in ((0.05, "feed.dir"), (0.1, "beef.dir")):
        spools[digest] = open_spool(root, start(kl_coef=kl_coef))
        hashes = {"models/policy": digest} if noted else {}
        spools[digest].finish("FINISHED", {}, [], hashes=hashes)
        time.sleep(0.01)  # the file system's clock decides which is the newer
    ship_all(root)
    lock = LOCK.replace(
        "    outs:", "    params:\n      params.yaml: {ppo: {kl_coef: KL}}\n    outs:"
    )
    newer, older = (lock.replace("KL", kl) for kl in ("0.1", "0.05"))
    for text, digest in ((newer.replace("feed", "beef"), "beef.dir"), (older, "feed.dir")):
        (root / "dvc.lock").write_text(text)
        tag_outputs(root)
        tagged = {one: load_sent(s.folder, tracking_uri(root)).outs for one, s in spools.items()}
        assert tagged[digest] == {"models/policy": digest}
    assert tagged["beef.dir"] == {"models/policy": "beef.dir"}
