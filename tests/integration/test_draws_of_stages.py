"""What `sample` and `ppo` draw depends neither on other rounds nor on the size of a batch."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.running.staging import model_hash
from tests import stage_world

pytestmark = pytest.mark.long

COMPARISONS = "data/rounds/r1/comparisons.jsonl"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world after `sample@r1` too; no prompt in it has preferences so far."""
    root = tmp_path_factory.mktemp("draws") / "world"
    stage_world.build(root)
    (root / "data/prepared/preferences").mkdir()
    for split in ("train", "heldout"):
        (root / f"data/prepared/preferences/{split}.jsonl").touch()
    edit(root, lambda params: params["sample"].update(pairs=24, batch_size=64))
    edit(root, lambda params: params["sample"]["sampling"].update(max_new_tokens=8))
    assert stage_world.run(root, "sample@r1") == 0
    return root


def edit(root: Path, change: Callable[[Any], None]) -> None:
    """Change params.yaml."""
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    change(params)
    yaml.dump(params, root / "params.yaml")


def add_round(params: Any) -> None:
    shipped = YAML().load(stage_world.ROOT / "params.yaml")
    params["rounds"]["r2"] = shipped["rounds"]["r2"]
    params["final"] = "r2"


def test_a_batch_of_another_size_writes_the_same_comparisons(world: Path) -> None:
    before = (world / COMPARISONS).read_bytes()
    assert before.count(b"\n") > 20
    edit(world, lambda params: params["sample"].update(batch_size=5))
    (world / COMPARISONS).unlink()

    assert stage_world.run(world, "sample@r1") == 0

    assert (world / COMPARISONS).read_bytes() == before


def test_sampling_and_the_scoring_after_the_last_step_show_how_far_they_are(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line comes with the last of all alone, so that a wrong number of them would be silent."""
    world = Path(shutil.copytree(world, tmp_path / "world"))
    assert stage_world.run(world, "sample@r1") == 0
    said = capsys.readouterr().err
    assert "sample@r1    48/48 responses  " in said
    by_sft = (world / COMPARISONS).read_text().count(model_hash(world / "models/sft"))

    assert stage_world.run(world, "reward@r1") == 0
    said = capsys.readouterr().err
    *_, steps, normaliser, passes = said.splitlines()
    assert steps.startswith("reward@r1    6/6 steps ")
    assert normaliser.startswith(f"reward@r1    {by_sft}/{by_sft} responses ")
    assert passes.startswith("reward@r1    11/11 passes ")


def test_stages_run_alone_beside_another_round_write_the_same_bytes(world: Path) -> None:
    comparisons = (world / COMPARISONS).read_bytes()
    policy = stage_world.digest(world, "ppo@r1")
    edit(world, add_round)
    (world / COMPARISONS).unlink()
    stage_world.forget(world, "ppo@r1")

    assert stage_world.run(world, "ppo@r1") == 0
    assert stage_world.run(world, "sample@r1") == 0

    assert stage_world.digest(world, "ppo@r1") == policy
    assert (world / COMPARISONS).read_bytes() == comparisons


def test_prompts_with_preferences_are_sampled_again_where_nobody_labels(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(world, tmp_path / "world"))
    judged = {
        json.loads(line)["prompt_id"]
        for split in ("train", "heldout")
        for line in (root / f"data/rounds/r1/preferences/{split}.jsonl").read_text().splitlines()
    }
    shutil.rmtree(root / "data/prepared/preferences")
    shutil.copytree(root / "data/rounds/r1/preferences", root / "data/prepared/preferences")
    prompts = (root / "data/prepared/prompts/train.jsonl").read_text().count("\n")
    edit(root, lambda params: params["sample"].update(pairs=prompts))

    assert stage_world.run(root, "sample@r1") == 2
    found = f"expected {prompts} prompts without preferences (sample.pairs), found "
    assert f"{found}{prompts - len(judged)}" in capsys.readouterr().err

    edit(root, lambda params: params["label"].update(annotators="none"))
    edit(root, lambda params: params["prepare"].update(sources=[{"path": "pairs.jsonl"}]))
    assert stage_world.run(root, "sample@r1") == 0
    lines = (root / COMPARISONS).read_text().splitlines()
    assert judged & {json.loads(line)["prompt_id"] for line in lines}
