"""The plan: DVC's graph, in an order that makes sense to a reader of the log."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from flows.graph import PlannedStage, needed, plan
from tasks.workspace.dvc_graph import GraphError
from tasks.workspace.stage_order import ordered, round_of

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def planned() -> list[PlannedStage]:
    """The plan of all stages, which takes DVC two seconds."""
    return plan(REPOSITORY)


def test_the_plan_has_exactly_the_stages_that_dvc_lists(planned: list[PlannedStage]):
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--name-only"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert sorted(stage.name for stage in planned) == sorted(listed)
    assert len(listed) > len({name.partition("@")[0] for name in listed}), "no rounds in dvc.yaml?"


def test_a_round_is_finished_before_the_next_one_starts(planned: list[PlannedStage]):
    rounds = [stage.round for stage in planned if stage.round is not None]
    changes = [key for key, before in zip(rounds, [None, *rounds], strict=False) if key != before]
    assert changes == sorted(set(rounds)), "a round is taken up again"


def test_the_last_stage_of_a_round_ends_it(planned: list[PlannedStage]):
    ends = [stage.name for stage in planned if stage.ends_round]
    assert ends == [f"evaluate@{key}" for key in ("r1", "r2", "r3")]


def test_stages_that_train_or_sample_are_marked_for_the_accelerator(planned: list[PlannedStage]):
    gpu = {stage.name for stage in planned if stage.gpu}
    assert {"sft", "reward@r1", "ppo@r3"} <= gpu
    assert not {"prepare", "validate@r1", "report"} & gpu


def test_what_needs_a_round_comes_after_all_of_that_round():
    needs = {
        "sft": set(),
        "test": {"ppo@r2"},
        "ppo@r1": {"sft"},
        "ppo@r2": {"ppo@r1"},
        "evaluate@r1": {"ppo@r1"},
        "evaluate@r2": {"ppo@r2"},
    }
    assert list(ordered(needs)) == ["sft", "ppo@r1", "evaluate@r1", "ppo@r2", "evaluate@r2", "test"]


def test_without_rounds_the_order_of_the_file_holds_where_the_graph_allows():
    needs = {"c": {"a"}, "b": set(), "a": set()}
    assert list(ordered(needs)) == ["b", "a", "c"]


def test_the_key_of_a_round_stands_behind_the_at_sign():
    assert round_of("ppo@r1") == "r1"
    assert round_of("sft") is None


def test_up_to_a_stage_the_plan_has_all_that_it_needs_and_no_more():
    names = [stage.name for stage in plan(REPOSITORY, until="reward@r1")]
    assert names == [
        "prepare", "base", "sft", "sample@r1", "label@r1", "validate@r1", "reward@r1"
    ]  # fmt: skip


def test_of_many_rounds_each_stage_is_asked_once():
    """Each path was walked: with ten rounds it took hours."""
    asked = []

    class Counted(dict[str, set[str]]):
        def __getitem__(self, name: str) -> set[str]:
            asked.append(name)
            return super().__getitem__(name)

    layers = [[f"a@r{n}", f"b@r{n}", f"c@r{n}"] for n in range(20)]
    needs = Counted({name: set() for name in layers[0]})
    for below, layer in pairwise(layers):
        needs |= {name: set(below) for name in layer}

    assert needed("a@r19", needs) == {"a@r19"} | {name for layer in layers[:-1] for name in layer}
    assert len(asked) == len(set(asked))


@pytest.mark.long
def test_the_end_of_a_round_is_its_last_stage_wanted_or_not():
    stages = {stage.name: stage for stage in plan(REPOSITORY, until="ppo@r1")}
    assert not stages["ppo@r1"].ends_round
    assert plan(REPOSITORY, until="evaluate@r1")[-1].ends_round


def test_a_folder_without_dvc_is_refused_by_its_name(tmp_path):
    with pytest.raises(GraphError, match=str(tmp_path)):
        plan(tmp_path)
