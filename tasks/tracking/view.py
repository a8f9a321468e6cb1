"""The page of MLflow's UI that shows the executions side by side, with their results as columns.

By itself MLflow opens on a welcome page, then on traces, and its table of runs has no columns of
metrics. What its *Share* button makes is a tag of the experiment that holds the state of the
table, and an address that names the tag. We make that tag ourselves.
"""

import json
from pathlib import Path

from mlflow.exceptions import MlflowException

from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.tracking.store import connect

VIEW = "results"
COLUMNS = (
    "metrics.`gold`",
    "metrics.`win_rate_vs_sft`",
    "metrics.`kl`",
    "metrics.`reward_accuracy`",
    "metrics.`test/gold`",
    "metrics.`seconds`",
    "params.`ppo.kl_coef`",
)


def runs_page(address: str, root: Path) -> str:
    """The address of the runs below MLflow's UI at `address`, whose store `root` uses.

    Just `address` if the tracking server does not respond now: it may when somebody opens its UI.
    """
    quiet_mlflow()
    try:
        store = connect(tracking_uri(root))
        view = json.dumps(_view())
        store.client.set_experiment_tag(store.experiment, f"mlflow.sharedViewState.{VIEW}", view)
    except MlflowException:
        return address
    return (
        f"{address}/#/experiments/{store.experiment}/runs"
        f"?workflowType=machine_learning&viewStateShareKey={VIEW}"
    )


def _view() -> dict[str, object]:
    """The state of the table, with every key that MLflow 3.17 keeps in it."""
    return {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": list(COLUMNS),
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsHiddenMode": "FIRST_10_RUNS",
        "runsVisibilityMap": {},
        "compareRunCharts": None,
        "compareRunSections": None,
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "groupBy": None,
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {},
        "chartsSearchFilter": "",
        "autoRefreshEnabled": False,
    }
