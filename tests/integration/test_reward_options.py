"""What the stage `reward` trains its model with, and when it trains none."""

import json
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from transformers import AutoModelForSequenceClassification

from rlhf import reward
from rlhf.reward import EncodedPair
from tasks.running.staging import write_json_lines
from tests.integration.options_world import (  # noqa: F401
    built_fixture,
    history,
    same,
    world_fixture,
)
from tests.stage_world import forget, run, set_params


@pytest.mark.parametrize("margins", [True, False])
def test_a_pair_trains_with_its_margin_its_weights_and_its_label(
    world: Path, margins: bool, monkeypatch: pytest.MonkeyPatch
):
    """Weights multiply: the label's own, and the mean over the kinds of annotators who agreed.

    A tie asks for no gap, whatever margin its file states: its first response is no better one.
    """
    path = world / "data/rounds/r1/preferences/train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0] |= {"margin": 0.75}
    rows[1] |= {"weight": 0.5, "source": "human+rubric"}
    rows[2] |= {"label": 0.5, "source": "human", "margin": 0.75}
    write_json_lines(path, rows)
    weighed = {"source_weights": {"human": 0.25}, "margins": margins}
    set_params(world, "reward", weighed)
    forget(world, "reward@r1")
    trained: list[EncodedPair] = []
    train = reward.train_members

    def noted(training, pairs, *args, **kwargs):
        trained.extend(pairs)
        return train(training, pairs, *args, **kwargs)

    monkeypatch.setattr(reward, "train_members", noted)

    assert run(world, "reward@r1") == 0

    found = [(pair.margin, pair.weight, pair.label) for pair in trained]
    first = (0.75 if margins else 0.0, 1.0, 1.0)
    assert found == [first, (0.0, 0.3125, 1.0), (0.0, 0.25, 0.5), *[(0.0, 1.0, 1.0)] * 21]


def test_a_reward_model_that_is_not_retrained_is_a_copy_with_its_scale(world: Path):
    """Of the model that the round starts from, not of what stood in the round's own folder."""
    yaml = YAML()
    params = yaml.load(world / "params.yaml")
    first = dict(params["rounds"]["r1"])
    params["rounds"] = {"r0": first, "r1": first | {"reward_model": "models/rounds/r0/reward"}}
    params["reward"]["retrain"] = False
    yaml.dump(params, world / "params.yaml")
    folder, before = (world / f"models/rounds/{key}/reward" for key in ("r1", "r0"))
    shutil.copytree(folder, before)
    path = world / "data/rounds/r1/preferences/heldout.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_json_lines(path, [rows[0] | {"round": "r0"}, *rows[1:]])
    forget(world, "reward@r1")

    assert run(world, "reward@r1") == 0

    copied, original = (
        AutoModelForSequenceClassification.from_pretrained(place) for place in (folder, before)
    )
    assert same(original.state_dict(), copied.state_dict())
    scale = [(each.config.score_mean, each.config.score_std) for each in (original, copied)]
    assert scale[0] == scale[1]
    assert scale[0][1] not in (0.0, 1.0)
    assert history(world, "reward@r1") == []
    metrics = json.loads((world / "results/reward/r1/metrics.json").read_text())
    assert metrics["accuracy_before"] == metrics["accuracy_after"]
    # Of the round's own held-out pairs, one less than there are.
    assert metrics["accuracy_before"]["n"] == len(rows) - 1 == 3
    assert metrics["accuracy_older"]["n"] == 1
