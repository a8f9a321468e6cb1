"""Which pool a stage belongs to, and what the ending of its flow run means here."""

import shutil
from pathlib import Path

import pytest
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.graph import PlannedStage
from flows.placing import pool_of, reason_to_stay
from flows.stages import Ending
from flows.states import STATE_NAMES, ending_of, task_state
from tasks.params.editing import edit_params
from tasks.workspace.stage_inputs import StageInputs

ROOT = Path(__file__).resolve().parents[3]


def planned(*, gpu: bool) -> PlannedStage:
    return PlannedStage(name="ppo@r1", round="r1", gpu=gpu, ends_round=False, stale=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (None, None)),
        ({"RLHF_GPU_POOL": "big"}, ("big", None)),
        ({"RLHF_CPU_POOL": "small"}, (None, "small")),
        ({"RLHF_GPU_POOL": "big", "RLHF_CPU_POOL": "small"}, ("big", "small")),
        ({"RLHF_GPU_POOL": "", "RLHF_CPU_POOL": ""}, (None, None)),
    ],
)
def test_the_environment_names_the_pools(settings, expected, monkeypatch):
    for name in ("RLHF_GPU_POOL", "RLHF_CPU_POOL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert (pool_of(planned(gpu=True)), pool_of(planned(gpu=False))) == expected


@pytest.mark.parametrize(
    ("annotators", "stage", "private", "reason"),
    [
        ("people", "label@r1", (), "what people have said is in this machine's store"),
        ("people", "ppo@r1", (), ""),
        ("rubric", "label@r1", (), ""),
        ("rubric", "prepare", ("mine.jsonl",), "it reads mine.jsonl, which git does not have"),
    ],
)
def test_a_stage_stays_with_what_only_this_machine_has(
    tmp_path: Path, annotators: str, stage: str, private: tuple[str, ...], reason: str
):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    edit_params(tmp_path / "params.yaml", {"label.annotators": annotators})
    inputs = StageInputs(outputs=(), makers=(), private=private)
    assert reason_to_stay(tmp_path, stage, inputs) == reason


@pytest.mark.parametrize("how", sorted(STATE_NAMES))
def test_an_ending_survives_the_way_through_a_flow_run(how):
    assert ending_of(task_state(Ending(how, "because"))) == Ending(how, "because")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        # Worth the retry that the task has; a person who cancels does not want one.
        (Crashed(message="the machine has gone"), Ending("killed", "the machine has gone")),
        (Cancelled(), Ending("refused", "its flow run was cancelled")),
        (Failed(message="KeyError"), Ending("failed", "KeyError")),
        (Failed(name="Busy", message="another run"), Ending("failed", "another run")),
        (Completed(), Ending("ran", "")),
    ],
)
def test_the_states_that_prefect_makes_itself_are_endings_too(state, expected):
    assert ending_of(state) == expected
