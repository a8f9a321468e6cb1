"""A stage that has both, and the use of the machine after a resume."""

import shutil
from pathlib import Path

from tasks.tracking.sent import load_sent
from tasks.tracking.shipping import ship, ship_all, tracking_uri
from tasks.tracking.spool import Output, open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    artifacts,
    history,
    model_folders_fixture,
    root_fixture,
    run_of,
    start,
)


def test_a_model_arrives_beside_the_results_of_its_stage(root: Path, model_folders: Path) -> None:
    """As SFT, the reward model and PPO publish both."""
    published, results = root / "models/policy", root / "results/metrics.json"
    shutil.copytree(model_folders / "policy", published)
    results.parent.mkdir()
    results.write_text("{}")
    spool = open_spool(root, start())
    spool.finish("FINISHED", {}, [Output("policy", published), Output("artifact", results)])
    assert ship(spool.folder, models=False).state == "open"
    shutil.rmtree(published)

    assert ship(spool.folder).state == "complete"

    models = load_sent(spool.folder, tracking_uri(root)).models
    assert list(models) == ["models/policy"]
    assert "model.safetensors" in [path.name for path in artifacts(root, models)]


def test_the_use_of_the_machine_goes_on_at_its_step_in_a_resumed_run(root: Path) -> None:
    key = "system/process_memory_megabytes"
    for value in (10.0, 20.0):
        spool = open_spool(root, start())
        spool.log_system({key: value})
        spool.finish("KILLED" if value < 20 else "FINISHED", {}, [])
    ship_all(root)

    assert history(root, run_of(root, "ppo@r1"), key) == [(0, 10.0), (1, 20.0)]
