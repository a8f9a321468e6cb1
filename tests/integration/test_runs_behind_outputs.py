"""Which run made what dvc.lock, or a folder, holds now."""

import json
from pathlib import Path

from mlflow import MlflowClient

from tasks.tracking.shipping import ship, ship_all, tracking_uri
from tasks.tracking.spool import Output, open_spool
from tasks.tracking.spools import run_behind
from tasks.workspace.dvc_lockfile import LockedStage
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import root_fixture, run_of, start  # noqa: F401


def test_what_a_later_run_has_published_is_not_sent_as_an_earlier_one_s(root: Path) -> None:
    """To a store that was made anew, once the links to the earlier one's are gone."""
    results = root / "results/metrics.json"
    results.parent.mkdir()
    results.write_text('{"gold": 1}')
    spool = open_spool(root, start())
    hashes = {"results/metrics.json": "feed"}
    spool.finish("FINISHED", {}, [Output("artifact", results)], hashes=hashes)
    assert ship(spool.folder).state == "complete"
    client, run = MlflowClient(tracking_uri(root)), run_of(root, "ppo@r1").info.run_id
    results.write_text('{"gold": 2}')
    (root / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: x\n    outs:\n"
        "    - {path: results/metrics.json, md5: beef}\n"
    )
    (spool.folder / "sent.json").unlink()

    ship_all(root)

    kept = Path(client.download_artifacts(run, "metrics.json", str(root)))
    assert json.loads(kept.read_text()) == {"gold": 1}
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
