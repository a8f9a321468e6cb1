"""What the stage `reward` does where a probe fails or the fresh labels warn, on tiny models."""

import csv
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from data.support_desk.splits import sample_requests
from data.support_desk.templates import select_templates
from data.support_desk.writers import sample_writer, write_response
from preferences.records import pair_id
from rlhf.named_seeds import named_random
from tasks.running.staging import model_hash, write_json_lines
from tests import stage_world
from tests.stage_world import digest, run, set_params

pytestmark = pytest.mark.long

PAIRS = 400
HELDOUT = 150
Label = Callable[[str, str], bool]
"""Whether the second of two responses is to be chosen."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("guards") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def let_a_round_come_first(root: Path) -> None:
    """Make r1 the second round: its policy is then one that PPO has trained."""
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    first = dict(params["rounds"]["r1"])
    params["rounds"] = {"r0": first, "r1": {**first, "policy": "models/rounds/r0/policy"}}
    yaml.dump(params, root / "params.yaml")


def label(root: Path, second: Label, *, policy: str | None = None) -> None:
    """A round of many pairs by the embedded writers, SFT's on one side, labelled by a rule."""
    requests = sample_requests(
        "train", PAIRS, named_random(0, "guards"), templates=select_templates(train=10)
    )
    writing = named_random(0, "guards", "writers")
    sft = model_hash(root / "models/sft")
    comparisons, rows = [], []
    for number, request in enumerate(requests):
        a, b = (write_response(request, sample_writer(writing), writing) for _ in range(2))
        if len(a) == len(b):
            b += " Bye."
        chosen, rejected = (b, a) if second(a, b) else (a, b)
        common = {
            "pair_id": pair_id(request.text, a, b), "prompt_id": f"{number:016x}",
            "prompt": request.text, "round": "r1",
        }  # fmt: skip
        comparisons.append(
            common | {"response_a": a, "response_b": b, "policy_a": sft, "policy_b": policy or sft}
        )
        rows.append(
            common
            | {
                "chosen": chosen,
                "rejected": rejected,
                "margin": 0.0,
                "weight": 1.0,
                "source": "rule",
            }
        )
    folder = root / "data/rounds/r1"
    write_json_lines(folder / "comparisons.jsonl", comparisons)
    for split, part in (("heldout", rows[:HELDOUT]), ("train", rows[HELDOUT:])):
        write_json_lines(
            folder / f"preferences/{split}.jsonl", [row | {"split": split} for row in part]
        )


def outcome(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / ".work/reward@r1/outcome.json").read_text())
    return found


def probes(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "probes.csv").open(newline="") as file:
        return {line["probe"]: line for line in csv.DictReader(file)}


def test_labels_of_which_most_are_turned_round_block_the_round_before_ppo(world: Path):
    """No outputs change, the failing probe is named, and its page says what was found."""
    draws = random.Random(0)
    before = digest(world, "reward@r1")
    # Finer responses are the longer ones here more often than not; 60 % of the labels say else.
    label(world, lambda a, b: (len(b) > len(a)) == (draws.random() < 0.4))

    assert run(world, "reward@r1") == 4
    ended = outcome(world)
    assert ended["status"] == "blocked"
    assert ended["message"].startswith("labels: ")
    assert "The policy stays models/sft; see .work/reward@r1/blocked" in ended["message"]
    assert digest(world, "reward@r1") == before
    folder = world / ".work/reward@r1/blocked"
    assert probes(folder)["labels"]["passed"] == "false"
    assert "| labels | 150 | " in (folder / "guards.md").read_text(encoding="utf-8")


def test_a_preference_for_length_alone_blocks_the_round(world: Path):
    label(world, lambda a, b: len(b) > len(a))
    set_params(world, "reward", {"epochs": 4})
    assert run(world, "reward@r1") == 4
    assert "length: " in outcome(world)["message"]


def test_where_probes_only_report_the_round_goes_on_and_the_files_say_what_failed(world: Path):
    label(world, lambda a, b: len(b) > len(a))
    assert run(world, "reward@r1") == 4
    set_params(world, "reward", {"probes": "report"})

    assert run(world, "reward@r1") == 0
    assert probes(world / "results/reward/r1")["length"]["passed"] == "false"
    assert not (world / ".work/reward@r1/blocked").exists()
    manifest = json.loads((world / "models/rounds/r1/reward/manifest.json").read_text())
    assert "probes" not in manifest["params"]["reward"]


def test_labels_are_of_all_rounds_so_far_and_newest_of_the_round_alone(world: Path):
    label(world, lambda a, b: len(b) > len(a))
    set_params(world, "reward", {"probes": "report"})
    path = world / "data/rounds/r1/preferences/heldout.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    write_json_lines(path, [{**row, "round": "r0"} for row in rows[:40]] + rows[40:])

    assert run(world, "reward@r1") == 0
    found = probes(world / "results/reward/r1")
    assert (found["labels"]["pairs"], found["newest"]["pairs"]) == (str(HELDOUT), str(HELDOUT - 40))


def test_fresh_labels_that_warn_stop_the_round_where_params_yaml_says_so(world: Path):
    label(world, lambda a, b: False, policy="the newest policy")
    set_params(world, "reward", {"probes": "report", "over_optimisation": "stop"})
    let_a_round_come_first(world)

    assert run(world, "reward@r1") == 3
    ended = outcome(world)
    assert ended["status"] == "stopped"
    # Annotators chose SFT's response, which is a, in every pair.
    assert "over SFT in 0.000 [0.000, 0.010] of 400 pairs" in ended["message"]
    signals = json.loads((world / ".work/reward@r1/stopped/signals.json").read_text())
    assert (signals["policy_wins"]["mean"], signals["policy_wins"]["n"]) == (0.0, 400)
    set_params(world, "reward", {"over_optimisation": "report"})
    assert run(world, "reward@r1") == 0
