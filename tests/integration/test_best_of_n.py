"""The stage `best_of_n` on tiny models: its outputs, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.running.staging import write_json_lines
from tests import stage_world

pytestmark = pytest.mark.long

SAMPLES = "results/evaluate/r1/samples.jsonl"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny world with an invented evaluation of the round, then the stage."""
    root = tmp_path_factory.mktemp("best") / "world"
    stage_world.build(root)
    evaluate(root)
    assert stage_world.run(root, "best_of_n") == 0
    return root


def evaluate(root: Path) -> None:
    """Ten prompts as `evaluate` leaves them; the stage takes eight."""
    lines = (root / "data/prepared/prompts/train.jsonl").read_text().splitlines()[:10]
    rows = [
        {**json.loads(line), "gold_sft": 3.0, "gold": 5.0 + number, "score": 0.5,
         "response": "w1\u2028w2\u2029w3\u0085"}
        for number, line in enumerate(lines)
    ]  # fmt: skip
    (root / SAMPLES).parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(root / SAMPLES, rows)


def metrics(root: Path) -> dict[str, Any]:
    return json.loads((root / "results/best_of_n/metrics.json").read_text())


def picks(root: Path) -> list[dict[str, Any]]:
    lines = (root / "results/best_of_n/samples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_it_measures_the_first_prompts_for_every_n_beside_the_policy(world: Path) -> None:
    found = metrics(world)

    assert (found["policy"], found["judge"], found["prompts"], found["samples"]) == (
        "r1", "gold", 8, 4,
    )  # fmt: skip
    (entry,) = found["rounds"]
    assert [point["n"] for point in entry["curve"]] == [1, 2, 4]
    proxies = [point["proxy"]["mean"] for point in entry["curve"]]
    assert proxies == sorted(proxies)
    assert proxies[0] < proxies[-1]
    assert found["ppo"]["mean"] == 8.5  # of 5 to 12
    assert found["gain"]["mean"] == pytest.approx(8.5 - found["best"]["mean"])
    assert found["best"] == entry["curve"][-1]["gold"]


def test_the_chosen_responses_can_be_read(world: Path) -> None:
    found, rows = metrics(world), picks(world)

    assert [row["prompt_id"] for row in rows] == [f"{number:016x}" for number in range(8)]
    golds = [row["gold"] for row in rows]
    assert sum(golds) / 8 == pytest.approx(found["best"]["mean"], abs=1e-4)
    scores = [row["score"] for row in rows]
    proxy = found["rounds"][0]["curve"][-1]["proxy"]["mean"]
    assert sum(scores) / 8 == pytest.approx(proxy, abs=1e-4)


def test_responses_do_not_depend_on_their_batch_and_a_prompt_has_different_ones(
    world: Path,
) -> None:
    before = metrics(world)
    yaml = YAML()
    params = yaml.load(world / "params.yaml")
    params["best_of_n"]["batch_size"] = 3
    yaml.dump(params, world / "params.yaml")

    assert stage_world.run(world, "best_of_n") == 0

    assert metrics(world) == before
    first, *_, last = before["rounds"][0]["curve"]
    assert first["proxy"] != last["proxy"]


def test_a_damaged_reward_model_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = world / "models/rounds/r1/reward/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    try:
        assert stage_world.run(world, "best_of_n") == 2
    finally:
        weights.write_bytes(whole)
    assert "models/rounds/r1/reward" in capsys.readouterr().err
