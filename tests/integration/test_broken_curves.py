"""A connection that breaks in the middle of a curve."""

from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient

from tasks.tracking.shipping import ship
from tasks.tracking.spool import open_spool
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.integration.tracked import (  # noqa: F401
    history,
    log_steps,
    root_fixture,
    run_of,
    start,
)


def test_a_curve_is_whole_although_the_connection_broke_while_it_was_sent(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(root, start())
    log_steps(spool, 0, 30)
    spool.finish("FINISHED", {}, [])
    send, broken = MlflowClient.log_batch, []

    def breaking(self: MlflowClient, run: str, metrics: Any = (), **more: Any) -> None:
        if metrics and not broken:
            broken.append(run)
            raise requests.ConnectionError("reset by peer")
        send(self, run, metrics=metrics, **more)

    monkeypatch.setattr(MlflowClient, "log_batch", breaking)

    assert ship(spool.folder).state == "unreachable"
    assert ship(spool.folder).state == "complete"

    assert history(root, run_of(root, "ppo@r1"), "objective/kl") == [(n, n / 10) for n in range(30)]
