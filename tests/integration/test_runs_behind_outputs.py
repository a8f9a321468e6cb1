"""Which run made what dvc.lock, or a folder, holds now."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.sync import main as sync_main
from tasks.tracking.shipping import ship, ship_all, tracking_uri
from tasks.tracking.spool import Output, open_spool
from tasks.tracking.spools import run_behind
from tasks.workspace import shared_weights
from tasks.workspace.dvc_cache import md5, output_hash
from tasks.workspace.dvc_lockfile import LockedStage
from tasks.workspace.shared_weights import WORTH_IT
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import root_fixture, run_of, start  # noqa: F401


def test_what_a_later_run_has_published_is_not_sent_as_an_earlier_one_s(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a store that was made anew, once the links to the earlier one's are gone."""
    results = root / "results/metrics.json"
    results.parent.mkdir()
    results.write_text('{"gold": 1}')
    spool = open_spool(root, start())
    hashes = {"results/metrics.json": "feed"}
    spool.finish("FINISHED", {}, [Output("artifact", results)], hashes=hashes)
    assert ship(spool.folder).state == "complete"
    results.write_text('{"gold": 2}')
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: x\n    outs:\n"
        "    - {path: results/metrics.json, md5: beef}\n"
    )
    (spool.folder / "sent.json").unlink()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{root.name} made anew")

    ship_all(root)

    client, run = MlflowClient(tracking_uri(root)), run_of(root, "ppo@r1").info.run_id
    assert client.list_artifacts(run) == []
    assert client.get_run(run).data.tags["outputs.gone"] == "results/metrics.json"


def test_the_run_behind_a_lock_made_all_of_its_outputs(root: Path) -> None:
    """Another seed may give another policy and the same round's table, or the other way round."""
    folders = {}
    for policy in ("feed.dir", "beef.dir"):
        spool = open_spool(root, start(kl_coef=0.1 if policy == "feed.dir" else 0.2))
        hashes = {"models/policy": policy, "results/ppo": "cafe.dir"}
        spool.finish("FINISHED", {}, [], hashes=hashes)
        folders[policy] = spool.folder

    for policy, folder in folders.items():
        outs = {"models/policy": policy, "results/ppo": "cafe.dir"}
        assert run_behind(root, "ppo@r1", LockedStage({}, outs)) == folder
    outs = {"models/policy": "dead.dir", "results/ppo": "cafe.dir"}
    assert run_behind(root, "ppo@r1", LockedStage({}, outs)) is None


def test_sync_tags_a_run_with_what_dvc_says_and_stores_its_weights_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a run that MLflow's server was away from, or one by a bare `dvc repro`."""
    monkeypatch.setattr(shared_weights, "LARGE", WORTH_IT)
    policy = root / "models/rounds/r1/policy/model.safetensors"
    policy.parent.mkdir(parents=True)
    policy.write_bytes(b"w" * (WORTH_IT))
    digest = output_hash(policy.parent)
    listing = json.dumps([{"md5": md5(policy), "relpath": policy.name}])
    for name, content in ((md5(policy), policy.read_bytes()), (digest, listing.encode())):
        cached = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
        cached.parent.mkdir(parents=True)
        cached.write_bytes(content)
    weights = root / ".dvc/cache/files/md5" / md5(policy)[:2] / md5(policy)[2:]
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: x\n    outs:\n"
        f"    - {{path: models/rounds/r1/policy, md5: {digest}}}\n"
    )
    hashes = {"models/rounds/r1/policy": digest}
    open_spool(root, start()).finish("FINISHED", {}, [], hashes=hashes)
    (root / "dvc.yaml").touch()
    monkeypatch.chdir(root)

    assert sync_main([]) == 0

    out = capsys.readouterr().out
    assert out == "1 run is in MLflow, 1 newly tagged with output hashes.\n"
    assert run_of(root, "ppo@r1").data.tags["dvc.out.models/rounds/r1/policy"] == digest
    assert policy.samefile(weights)
    assert sync_main([]) == 0
    assert ", 0 newly tagged" in capsys.readouterr().out


def test_sync_goes_on_after_a_run_that_mlflow_refuses_and_ends_with_1(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries = ""
    for stage in ("prepare", "base", "sft"):
        path = f"results/{stage}"
        open_spool(root, start(stage)).finish("FINISHED", {}, [], hashes={path: f"{stage}.dir"})
        entries += f"  {stage}:\n    cmd: x\n    outs:\n    - {{path: {path}, md5: {stage}.dir}}\n"
    ship_all(root)
    client = MlflowClient(tracking_uri(root))
    client.delete_run(run_of(root, "base").info.run_id)
    (root / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n{entries}")
    (root / "dvc.yaml").touch()
    monkeypatch.chdir(root)

    assert sync_main([]) == 1

    assert capsys.readouterr().out.endswith(" in MLflow, 2 newly tagged with output hashes.\n")
    assert caplog.messages[0].startswith("base: output hashes are not in MLflow yet. ")
    for stage in ("prepare", "sft"):
        assert run_of(root, stage).data.tags[f"dvc.out.results/{stage}"] == f"{stage}.dir"
