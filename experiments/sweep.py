"""The Prefect flow of an experiment: the flow `rlhf` for each variant and seed, one after another.

Each run has a workspace of its own below `.work/variants/`, and DVC's cache is shared, so that
stages that runs have in common run once. Started again, a sweep continues: DVC skips what is done.
A run that stops itself or is blocked is a result; the sweep goes on with the next.
"""

from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from experiments.descriptions import load_experiment
from experiments.records import keep_record, record_path
from flows.rlhf import rlhf
from tasks.params.loading import load_params
from tasks.workspace.variants import prepare_overlaid

RESULTS = {"Completed", "Stopped", "Blocked"}
"""Final states of a run that say something of its variant; others are to be run again."""


@flow(name="experiment", flow_run_name="{name}", persist_result=False)
def sweep(name: str, root: Path, seeds: Sequence[int]) -> State[None]:
    """Run all variants of an experiment over the seeds; the state names runs without a result."""
    experiment = load_experiment(root, name)
    lacking: list[str] = []
    # Seed by seed, so that a sweep that is cut short leaves whole pairs to compare.
    for seed in seeds:
        for variant in experiment.variants:
            run = f"{name}-{variant}-seed{seed}"
            workspace = prepare_overlaid(root, run, experiment.overlay(variant, seed))
            params = load_params(workspace / "params.yaml")
            state = rlhf(workspace=workspace, return_state=True)
            ended = state.name or "", state.message or ""
            get_run_logger().info("%s: %s: %s", run, *ended)
            if ended[0] not in RESULTS:
                lacking.append(f"{run} ({ended[0]}: {ended[1]})")
                continue
            path = record_path(root, name, variant, seed)
            keep_record(path, workspace, params, variant=variant, ended=ended)
    if lacking:
        return Failed(name="Incomplete", message=f"without a result: {'; '.join(lacking)}")
    return Completed(message=f"All {len(seeds) * len(experiment.variants)} runs have a result.")
