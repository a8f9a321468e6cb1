"""The names of executions: what they differ in, on which commit."""

from dataclasses import replace
from pathlib import Path

import pytest

from feedback.annotators import LabelParams
from preferences.params import ValidateParams
from preferences.source_params import SourceParams
from rlhf.params.best_of_n import BestOfNParams
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.reward import RewardParams
from rlhf.params.sft import SFTParams
from tasks.params.loading import (
    BaseParams,
    Params,
    ReportParams,
    RoundParams,
    RunParams,
    SampleParams,
)
from tasks.params.prepare import FilesParams, PrepareParams
from tasks.tracking.run_names import run_name
from tests.git_command import git


def entry(policy: str, start: str | None = None) -> RoundParams:
    return RoundParams(
        policy=policy, start=start or policy, reward_model="models/sft", preferences="p"
    )


DEFAULT = Params(
    run=RunParams(),
    prepare=PrepareParams(),
    base=BaseParams(),
    sft=SFTParams(),
    sample=SampleParams(),
    label=LabelParams(),
    validate=ValidateParams(),
    reward=RewardParams(),
    ppo=PPOParams(),
    evaluate=EvaluateParams(),
    best_of_n=BestOfNParams(),
    report=ReportParams(),
    rounds={
        "r1": entry("models/sft"),
        "r2": entry("models/rounds/r1/policy"),
    },
    final="r2",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    for name in ("params.yaml", "dvc.lock"):
        (root / name).write_text("one\n")
    (root / ".gitignore").write_text(".work\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "one")
    return root


def test_a_name_holds_differences_rounds_and_commit(checkout: Path) -> None:
    short = git(checkout, "rev-parse", "HEAD")[:7]
    params = replace(DEFAULT, ppo=replace(DEFAULT.ppo, kl_coef=0.1))

    assert run_name(checkout, DEFAULT) == f"default, 2 rounds, {short}"
    assert run_name(checkout, params) == f"kl 0.10, 2 rounds, {short}"


def test_a_changed_tracked_file_marks_the_checkout_dirty(checkout: Path) -> None:
    (checkout / "params.yaml").write_text("two\n")

    assert run_name(checkout, DEFAULT).endswith("-dirty")


def test_neither_the_lock_that_a_run_writes_nor_a_new_file_makes_it_dirty(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("two\n")
    (checkout / "notes.txt").write_text("mine\n")

    assert not run_name(checkout, DEFAULT).endswith("-dirty")


def test_outside_of_git_there_is_no_commit_to_name(tmp_path: Path) -> None:
    assert run_name(tmp_path, DEFAULT) == "default, 2 rounds"


def test_a_variant_is_named_first_and_has_the_commit_of_the_main_line(checkout: Path) -> None:
    workspace = checkout / ".work" / "variants" / "seed1"
    workspace.parent.mkdir(parents=True)
    git(checkout, "worktree", "add", "--detach", str(workspace))
    (workspace / "params.yaml").write_text("laid over\n")
    short = git(checkout, "rev-parse", "HEAD")[:7]
    params = replace(
        DEFAULT, run=replace(DEFAULT.run, seed=1), ppo=replace(DEFAULT.ppo, kl_coef=0.0)
    )

    assert run_name(workspace, params) == f"seed1, kl 0, 2 rounds, {short}"


@pytest.mark.parametrize(
    ("changed", "token"),
    [
        ({"ppo": PPOParams(kl_coef=0.025)}, "kl 0.025"),
        ({"ppo": PPOParams(optimiser=replace(PPOParams().optimiser, lr=1.5e-6))}, "lr 1.5e-6"),
        ({"ppo": PPOParams(kl_estimator="k3")}, "ppo.kl_estimator=k3"),
        ({"ppo": PPOParams(kl_limit=12.0)}, "ppo.kl_limit=12"),
        ({"ppo": PPOParams(lora=LoraParams())}, "ppo.lora"),
        ({"reward": RewardParams(retrain=False)}, "no-retrain"),
        ({"reward": RewardParams(optimiser=OptimiserParams(lr=3e-4))}, "reward-lr 3e-4"),
        ({"sft": SFTParams(packing=True)}, "sft.packing"),
        ({"run": RunParams(seed=7)}, "seed 7"),
        ({"label": LabelParams(annotators="people")}, "people"),
        ({"base": BaseParams(model="hub/models/SmolLM2-135M/")}, "SmolLM2-135M"),
        (
            {"prepare": PrepareParams(files=FilesParams(prompts="a", demonstrations="b"))},
            "own-data",
        ),
        (
            {
                "prepare": PrepareParams(
                    sources=(SourceParams(path="data/hh"), SourceParams(path="b"))
                )
            },
            "hh+b",
        ),
        ({"final": "r1"}, "final-r1"),
        (
            {"rounds": {**DEFAULT.rounds, "r2": DEFAULT.rounds["r1"]}},
            "r2-from-sft",
        ),
        (
            {"rounds": {**DEFAULT.rounds, "r2": entry("models/rounds/r1/policy", "models/sft")}},
            "r2-starts-at-sft",
        ),
    ],
)
def test_a_parameter_has_a_short_name(
    tmp_path: Path, changed: dict[str, object], token: str
) -> None:
    assert run_name(tmp_path, replace(DEFAULT, **changed)).split(", ") == [token, "2 rounds"]  # type: ignore[arg-type]


def test_the_three_most_telling_differences_are_named(tmp_path: Path) -> None:
    params = replace(
        DEFAULT,
        run=RunParams(threads=4, seed=3),
        base=BaseParams(model="hub/SmolLM2-135M"),
        ppo=PPOParams(kl_coef=0.2, lam=0.9),
    )

    assert run_name(tmp_path, params) == "SmolLM2-135M, kl 0.20, seed 3, 2 rounds"
