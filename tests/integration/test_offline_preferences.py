"""Preferences of one's own and nobody to judge: every stage in order, and what the table shows."""

import json
import random
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from data.support_desk.corpus import sample_document
from data.support_desk.splits import sample_requests
from data.support_desk.writers import write_response
from tasks import evaluate
from tasks.reporting.result_table import result_table
from tasks.reporting.summary import build_results
from tests import stage_world
from tests.integration.own_place import write_rows
from tests.stage_world import ROOT, TEN

pytestmark = pytest.mark.long

PROMPTS, PAIRS = 100, 200


@pytest.fixture
def offline(tmp_path: Path) -> Path:
    """Prompts, demonstrations and pairs in files of one's own; tiny params, one round."""
    yaml, draw = YAML(), random.Random(1)
    params = yaml.load(ROOT / "params.yaml")
    stage_world.make_tiny(params, rounds=1)
    requests = sample_requests("train", PROMPTS + PAIRS, draw, templates=TEN)
    # No prompt of the embedded world has these words, so no rubric knows an answer's gold score.
    asked = [
        {"prompt_id": f"p{n}", "prompt": f"Somebody wrote to us: {request.text}"}
        for n, request in enumerate(requests)
    ]
    kinds = ("careful", "grumpy")
    said = [[write_response(request, kind, draw) for kind in kinds] for request in requests]
    own = tmp_path / "mine"
    # The gate refuses pairs on prompts that evaluate the policy, so the pairs have others.
    write_rows(own / "prompts.jsonl", asked[:PROMPTS])
    answered = [row | {"response": good} for row, (good, _) in zip(asked, said, strict=True)]
    write_rows(own / "demonstrations.jsonl", answered[:64])
    write_rows(own / "corpus.jsonl", [{"text": sample_document(draw, templates=TEN)}] * 40)
    pairs = [
        {"prompt": row["prompt"], "chosen": good, "rejected": bad}
        for row, (good, bad) in zip(asked[PROMPTS:], said[PROMPTS:], strict=True)
    ]
    write_rows(own / "pairs.jsonl", pairs)
    params["prepare"]["files"] = {
        name: f"mine/{name}.jsonl" for name in ("prompts", "demonstrations", "corpus")
    }
    params["prepare"]["sources"] = [{"path": "mine/pairs.jsonl"}]
    params["label"]["annotators"] = "none"
    params["sft"]["heldout_fraction"] = 0.1
    yaml.dump(params, tmp_path / "params.yaml")
    for name in ("allowed.jsonl", "withdrawn"):
        source, target = ROOT / "data" / name, tmp_path / "data" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return tmp_path


def read(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_preferences_alone_become_a_policy_and_a_table_without_gold(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stage in ("prepare", "base", "sft", "sample@r1", "label@r1", "validate@r1"):
        assert stage_world.run(offline, stage) == 0, stage
    round_ = offline / "data/rounds/r1"
    assert (round_ / "comparisons.jsonl").read_text(encoding="utf-8")
    assert not (round_ / "judgments.jsonl").read_text(encoding="utf-8").strip()
    for stage in ("reward@r1", "ppo@r1"):
        assert stage_world.run(offline, stage) == 0, stage
    # The pairs are all that the reward model has seen.
    held = read(offline / "results/reward/r1/metrics.json")
    assert held["pairs"] == sum(
        1 for _ in (offline / "data/prepared/preferences/train.jsonl").open()
    )

    monkeypatch.chdir(offline)
    monkeypatch.setenv("RLHF_SHIPPER", "driver")
    monkeypatch.setenv("RLHF_EXECUTION", "tiny")
    for policy in (["--policy", "sft"], ["--round", "r1"], ["--policy", "final"]):
        assert evaluate.main(policy) == 0, policy
    results = build_results(offline, ["r1"], seed=0, test_policy="r1")
    assert [policy["gold"] for policy in results["policies"]] == [None, None]
    # SFT is not measured against itself, so nobody judged it.
    judges = [policy["win_rate_judge"] for policy in results["policies"]]
    assert judges == [None, "reward_model"]
    (model,) = results["reward_models"]
    assert {"mean", "low", "high"} <= model["label_accuracy"].keys()
    table = " ".join(result_table(results).split())
    assert "SFT -> policy" in table
    assert "held-out labels" in table
    assert "Win rates are judged by the reward model that the policy was trained on" in table

    # A copy of that reward model as the judge of section `label` says the same, by its own way.
    shutil.copytree(offline / "models/rounds/r1/reward", offline / "mine/judge")
    stage_world.set_params(offline, "label", {"reward_model": "mine/judge"})
    stage_world.set_params(offline, "evaluate", {"judge": "reward_model"})
    assert evaluate.main(["--round", "r1"]) == 0
    before = results["policies"][1]["win_rate_vs_sft"]
    judged = build_results(offline, ["r1"], seed=0, test_policy="r1")["policies"][1]
    assert judged["win_rate_judge"] == "label.reward_model"
    assert judged["win_rate_vs_sft"] == before | {"skipped": 0}
    # The round began with SFT.
    assert judged["win_rate_vs_previous"] == judged["win_rate_vs_sft"]

    # A second round that has changed nothing: even with the policy before, as far from SFT as that.
    shutil.copytree(offline / "models/rounds/r1", offline / "models/rounds/r2")
    parts = {name: f"models/rounds/r1/{name}" for name in ("policy", "reward")}
    second = {"policy": parts["policy"], "start": parts["policy"], "reward_model": parts["reward"]}
    second["preferences"] = "data/rounds/r1/preferences"
    stage_world.set_params(offline, "rounds", {"r2": second})
    for judge, skipped in (("reward_model", {"skipped": 0}), ("reward", {})):
        stage_world.set_params(offline, "evaluate", {"judge": judge})
        assert evaluate.main(["--round", "r2"]) == 0
        path = offline / "results/evaluate/r2/metrics.json"
        measured = json.loads(path.read_text(encoding="utf-8"))
        assert measured["win_rate_vs_sft"] == before | skipped
        assert measured["win_rate_vs_previous"]["mean"] == 0.5
    assert before["mean"] != 0.5
