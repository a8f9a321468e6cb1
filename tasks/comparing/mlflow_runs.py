"""A run as MLflow has it: its params, and of each stage that it ran the hashes in and out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from tasks.tracing.records import Ran
from tasks.tracking.store import Store, connect

IN, OUT = "dvc.in.", "dvc.out."
MOST = 500
"""Runs per page; a pipeline has far fewer stages."""


class FoundRun(NamedTuple):
    """One execution of the pipeline."""

    commit: str
    params: Mapping[str, str]
    runs: tuple[Ran, ...]
    """Only the stages that this execution ran itself."""


def find_run(uri: str, name: str) -> FoundRun | None:
    """The newest execution with this id, name, or execution's id; None if there is none.

    A name may be Prefect's, which has no date before it.
    """
    store = connect(uri)
    run = _by_id(store, name)
    quoted = name.replace("'", "")
    for key in ("mlflow.runName", "rlhf.execution"):
        run = run or next(iter(_search(store, f"tags.`{key}` = '{quoted}'")), None)
    run = run or next(_dated(store, quoted), None)
    if run is None:
        return None
    parent = run.data.tags.get("mlflow.parentRunId")
    whole = store.client.get_run(parent) if parent else run
    stages = _search(store, f"tags.`mlflow.parentRunId` = '{whole.info.run_id}'")
    # The newest first; of a stage that ran twice, the newest counts.
    ran = {one.stage: one for one in map(_ran, reversed(stages))}
    params: dict[str, str] = dict(whole.data.params)
    return FoundRun(whole.data.tags.get("git.commit", ""), params, tuple(ran.values()))


def _ran(run: Run) -> Ran:
    tags: dict[str, Any] = run.data.tags
    return Ran(tags.get("rlhf.stage", ""), _tagged(tags, IN), _tagged(tags, OUT), {})


def _tagged(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix)
    }


def _dated(store: Store, name: str) -> Iterator[Run]:
    """The executions with this name behind their dates, the newest first.

    The second one of a day has a number behind its name, which Prefect does not show.
    """
    found = _search(store, f"tags.`mlflow.runName` LIKE '____-__-__ {name}%'")
    # `_` in the name stands for any character, too.
    own = re.compile(rf"\S+ {re.escape(name)}( #\d+)?")
    return (run for run in found if own.fullmatch(run.info.run_name))


def _by_id(store: Store, name: str) -> Run | None:
    try:
        return store.client.get_run(name)
    except MlflowException:
        return None


def _search(store: Store, query: str) -> list[Run]:
    order = ["attributes.start_time DESC"]
    return list(
        store.client.search_runs([store.experiment], query, max_results=MOST, order_by=order)
    )
