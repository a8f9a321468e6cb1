"""Which of several runs in MLflow a name stands for."""

from tasks.comparing.mlflow_runs import find_run
from tasks.tracking.shipping import tracking_uri
from tasks.tracking.store import connect
from tests.integration.mlflow_store import database_fixture, experiment_fixture  # noqa: F401
from tests.traced_world import World
from tests.unit.tasks.comparing.compared import world_fixture  # noqa: F401


def test_prefects_name_is_that_of_the_newest_run_also_of_one_day(world: World) -> None:
    """MLflow numbers those of one day (`tasks.tracking.runs._unused`), Prefect does not."""
    store = connect(tracking_uri(world.root))
    names = ("no_kl, 1 round", "no_kl, 1 round #2", "no_kl, 1 round-dirty", "no_kl, 1 round #2b")
    for started, name in enumerate(names):
        tags = {"mlflow.runName": f"2026-11-23 {name}", "git.commit": name}
        store.client.create_run(store.experiment, start_time=1_000 + started, tags=tags)

    def commit(name: str) -> str:
        found = find_run(tracking_uri(world.root), name)
        assert found is not None
        return found.commit

    assert commit("no_kl, 1 round") == "no_kl, 1 round #2"
    assert commit("no_kl, 1 round #2") == "no_kl, 1 round #2"
    assert commit("2026-11-23 no_kl, 1 round") == "no_kl, 1 round"
