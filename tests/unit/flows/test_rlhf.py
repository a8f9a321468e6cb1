"""How the ending of a stage shows in Prefect, and what deserves a second try."""

from dataclasses import replace
from pathlib import Path

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.states import Completed

from flows import promotion_request
from flows.graph import PlannedStage, plan_line
from flows.recording import flow_links, mlflow_status
from flows.rlhf import ask_for_promotion, second_try_can_help, stage
from flows.stages import HOW_BY_EXIT_CODE, Ending
from flows.states import STATE_NAMES, task_state
from tasks.params.loading import load_params
from tasks.running.outcome import EXIT_CODES

OUTSIDE = TaskRun(task_key="stage", dynamic_key="0")
"""Of no flow run that somebody could have cancelled."""
WELL = ["ran", "unchanged", "cached", "waiting"]


@pytest.mark.parametrize("how", WELL)
def test_what_went_well_or_waits_for_people_is_completed(how):
    assert task_state(Ending(how, "for labels")).is_completed()


@pytest.mark.parametrize("how", sorted(set(STATE_NAMES) - set(WELL)))
def test_everything_else_is_failed_with_its_own_name_and_message(how):
    state = task_state(Ending(how, "because"))
    assert state.is_failed()
    assert state.message == "because"
    assert state.name == STATE_NAMES[how]


@pytest.mark.parametrize(
    ("how", "status"), [("waiting", "SCHEDULED"), ("blocked", "FAILED"), ("bad_input", "FAILED")]
)
def test_a_run_that_waits_for_people_has_not_failed_in_mlflow(how, status):
    assert mlflow_status([task_state(Ending(how, "for labels"))]) == status


def test_a_run_whose_inputs_changed_meanwhile_has_come_to_its_end_in_mlflow():
    assert mlflow_status([Completed()]) == mlflow_status([Completed(name="Stale")]) == "FINISHED"
    assert mlflow_status([]) == "KILLED", "it was interrupted"


@pytest.mark.parametrize("server", ["http://127.0.0.1:4200", "None"])
def test_the_page_of_a_flow_run_is_named_where_there_is_a_server(server, monkeypatch):
    page = f"{server}/runs/flow-run/5d7e"
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "5d7e")
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__UI_URL", page)
    known = {"prefect.flow_run": "5d7e"}
    assert flow_links() == known | ({"prefect.page": page} if server != "None" else {})


def test_every_ending_has_a_name_of_its_own():
    assert len(set(STATE_NAMES.values())) == len(STATE_NAMES)


def test_only_a_crash_deserves_a_second_try():
    helped = {
        how
        for how in STATE_NAMES
        if second_try_can_help(stage, OUTSIDE, task_state(Ending(how, "")))
    }
    assert helped == {"failed", "killed"}


def test_the_second_try_is_the_last():
    assert stage.retries == 1


def test_prefect_keeps_no_results_and_caches_nothing():
    assert stage.persist_result is False
    assert stage.cache_policy is not None
    assert stage.cache_policy.compute_key(task_ctx=None, inputs={}, flow_parameters={}) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("final", "evaluated", "asked"),
    [
        ("r3", ["r1", "r2", "r3"], ["r3"]),
        ("r1", ["r1", "r2", "r3"], ["r1"]),
        # People still label r3.
        ("r3", ["r1", "r2"], ["r2"]),
        ("r1", ["r2"], []),
        ("r3", [], []),
    ],
)
def test_people_are_asked_about_the_final_policy(tmp_path, monkeypatch, final, evaluated, asked):
    for name in ("baseline", *(f"evaluate/{key}" for key in evaluated)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text("{}")
    found = []
    monkeypatch.setattr(promotion_request, "ask", lambda _root, key: found.append(key))
    params = replace(load_params(Path("params.yaml")), final=final)

    ask_for_promotion(tmp_path, params)

    assert found == asked


def planned(name: str, *, gpu: bool = False, stale: bool) -> PlannedStage:
    return PlannedStage(name=name, round=None, gpu=gpu, ends_round=False, stale=stale)


def test_the_log_says_what_is_to_run_and_where():
    stages = [
        planned("prepare", stale=False),
        planned("label@r1", stale=True),
        planned("ppo@r1", gpu=True, stale=True),
    ]
    assert plan_line(stages) == (
        "2 of 3 stages are stale or depend on one that is (* on the accelerator where there is "
        "one): label@r1, ppo@r1*"
    )


def test_the_log_says_that_nothing_is_to_run():
    line = plan_line([planned("prepare", stale=False)] * 2)
    assert line == "All 2 stages are unchanged; nothing to run."


def test_a_round_that_its_fresh_labels_stop_shows_as_stopped_and_is_not_tried_again():
    code = EXIT_CODES["stopped"]
    state = task_state(Ending(HOW_BY_EXIT_CODE[code], "the reward model orders 0.5 of 500 pairs"))
    assert (state.name, state.is_failed()) == ("Stopped", True)
    assert not second_try_can_help(stage, OUTSIDE, state)
