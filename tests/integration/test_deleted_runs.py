"""Somebody deletes a killed run's row in MLflow, and the stage is resumed after that."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.tracking.shipping import ship, tracking_uri
from tasks.tracking.spool import open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    history,
    log_steps,
    root_fixture,
    run_of,
    start,
)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_resumed_stage_gets_a_run_again(root: Path, for_good: bool) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 10)
    spool._lock.close()  # As the kernel does for a process that has died.
    assert ship(spool.folder).state == "complete"
    deleted = run_of(root, "ppo@r1").info.run_id
    client = MlflowClient(tracking_uri(root))
    client.delete_run(deleted)
    if for_good:  # As `mlflow gc` does.
        client._tracking_client.store._hard_delete_run(deleted)

    resumed = open_spool(root, start())
    log_steps(resumed, 8, 14)
    resumed.finish("FINISHED", {"gold": 1.0}, [])

    result = ship(resumed.folder)
    assert result.state == "complete", result.detail
    run = run_of(root, "ppo@r1")
    assert run.info.run_id != deleted
    assert run.data.params["ppo.kl_coef"] == "0.05"
    assert [step for step, _ in history(root, run, "objective/kl")] == list(range(14))
