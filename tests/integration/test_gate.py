"""The gate before production in a tiny world with a real MLflow store, by its command.

Two policies stand for two rounds. That of r1 is PPO's after three steps, no better than SFT. That
of r2 has learnt to say one short sentence that the rubric likes, whatever the prompt: it wins
everywhere, and is far from SFT.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from data.support_desk.splits import sample_requests
from rlhf.models import load_policy, load_tokenizer
from rlhf.named_seeds import named_random
from tasks import promote
from tasks.promoting.measuring import VERDICT
from tasks.promoting.registration import register, tag_and_register
from tasks.running.staging import write_json_lines
from tasks.tracking import promotion
from tasks.tracking.registered_names import POLICY, REWARD_MODEL
from tasks.tracking.shipping import ship_all, tracking_uri
from tasks.tracking.spool import Output, RunStart, open_spool
from tasks.tracking.store import connect
from tasks.workspace.dvc_cache import output_hash
from tests import stage_world

pytestmark = pytest.mark.long

WHO = ("--who", "Lea", "--why", "better on all counts")
LOOSE = ("--max-kl", "1000", "--min-length", "0", "--min-diversity", "0")
"""Limits that r2 keeps to; the win rate it has anyway."""
OUTS = {
    "prepare": ["data/prepared"],
    "sft": ["models/sft", "results/sft"],
    "reward@r1": ["models/rounds/r1/reward", "results/reward/r1"],
    "reward@r2": ["models/rounds/r2/reward", "results/reward/r2"],
    "ppo@r1": ["models/rounds/r1/policy"],
    "ppo@r2": ["models/rounds/r2/policy"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        stage_world.build(folder)
        write_prompts(folder)
        add_second_round(folder)
        write_lock(folder)
        ship_all(folder)
        assert tag_and_register(folder) == 4
    return folder


def write_prompts(root: Path) -> None:
    for split in ("heldout", "test"):
        requests = sample_requests(
            "train", 16, named_random(0, "gate", split), templates=stage_world.TEN
        )
        rows = [{"prompt_id": f"{n:016x}", "prompt": r.text} for n, r in enumerate(requests)]
        write_json_lines(root / f"data/prepared/prompts/{split}.jsonl", rows)
    # Requests are longer in this world's few tokens.
    stage_world.set_params(root, "evaluate", {"max_prompt_tokens": 400})


def add_second_round(root: Path) -> None:
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["rounds"]["r2"] = dict(params["rounds"]["r1"])
    yaml.dump(params, root / "params.yaml")
    for name in ("models/rounds/{}/reward", "results/reward/{}"):
        shutil.copytree(root / name.format("r1"), root / name.format("r2"))
    folder = root / "models/rounds/r2/policy"
    shutil.copytree(root / "models/sft", folder)
    learn_one_sentence(root, folder)
    start = RunStart("ppo@r2", "tiny", {}, {}, {})
    open_spool(root, start).finish("FINISHED", {}, [Output("policy", folder)])


def learn_one_sentence(root: Path, folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    policy = load_policy(folder, torch.device("cpu")).train()
    lines = (root / "data/prepared/prompts/heldout.jsonl").read_text().splitlines()
    lines += (root / "data/prepared/prompts/test.jsonl").read_text().splitlines()
    from rlhf.chat import encode_prompt, encode_response

    answer = encode_response(tokenizer, "Hello.", finished=True)
    rows = [[*encode_prompt(tokenizer, json.loads(line)["prompt"]), *answer] for line in lines]
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(15):
        for row in rows:
            ids = torch.tensor([row])
            labels = ids.clone()
            labels[:, : -len(answer)] = -100
            policy(ids, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    policy.save_pretrained(folder)


def write_lock(root: Path, more: dict[str, list[str]] | None = None) -> None:
    stages = {
        name: {"outs": [{"path": path, "md5": output_hash(root / path)} for path in outs]}
        for name, outs in {**OUTS, **(more or {})}.items()
    }
    if "evaluate@r1" in stages:
        path = "models/rounds/r1/policy"
        stages["evaluate@r1"]["deps"] = [{"path": path, "md5": output_hash(root / path)}]
    YAML().dump({"schema": "2.0", "stages": stages}, root / "dvc.lock")


@pytest.fixture
def root(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = Path(shutil.copytree(world, tmp_path / "root"))
    (folder / "dvc.yaml").touch()
    monkeypatch.chdir(folder)
    return folder


def call(*arguments: str) -> int:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    return promote.main(list(arguments))


def production(root: Path) -> str | None:
    version = promotion.in_production(root)
    return None if version is None else version.tags["rlhf.round"]


def test_every_policy_and_reward_model_is_a_version_with_its_hash_and_both_cards(
    root: Path,
) -> None:
    client = connect(tracking_uri(root)).client
    found = {
        (one.name, one.tags["dvc.path"]): one
        for name in (POLICY, REWARD_MODEL)
        for one in client.search_model_versions(f"name = '{name}'")
    }
    # The reward model of r2 is a copy of r1's in this world; no run of its own has sent it.
    assert set(found) == {
        (POLICY, "models/sft"),
        (POLICY, "models/rounds/r1/policy"),
        (POLICY, "models/rounds/r2/policy"),
        (REWARD_MODEL, "models/rounds/r1/reward"),
    }
    for (name, path), version in found.items():
        assert version.tags["dvc.md5"] == output_hash(root / path)
        cards = f"cards/{name}-{version.version}"
        assert f"`{version.tags['dvc.md5']}`" in version.description
        for card in ("model-card.md", "data-card.md"):
            text = client.download_artifacts(str(version.run_id), f"{cards}/{card}", str(root))
            assert version.tags["dvc.md5"] in Path(text).read_text()
    assert found[POLICY, "models/sft"].tags["rlhf.round"] == "sft"
    assert found[REWARD_MODEL, "models/rounds/r1/reward"].tags["rlhf.round"] == "r1"


def test_cards_are_written_again_once_there_are_new_results_and_no_version_is_new(
    root: Path,
) -> None:
    client = connect(tracking_uri(root)).client
    number = len(client.search_model_versions())
    assert register(root) == 0
    results = root / "results/evaluate/r1"
    results.mkdir(parents=True)
    share = {"mean": 0.625, "low": 0.5, "high": 0.75, "n": 16}
    (results / "metrics.json").write_text(json.dumps({"win_rate_vs_sft": share}))
    write_lock(root, {"evaluate@r1": ["results/evaluate/r1"]})
    # The reward model's card is of the same round.
    assert register(root) == 2
    assert register(root) == 0
    assert len(client.search_model_versions()) == number
    (version,) = client.search_model_versions("tags.`dvc.path` = 'models/rounds/r1/policy'")
    assert "| win rate over SFT | 0.625 [0.500, 0.750], n = 16 |" in version.description


def test_refused_then_overridden_then_granted_then_rolled_back(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No better than SFT: shown, refused, and nothing is in production.
    assert call("r1") == 4
    out = capsys.readouterr().out
    assert "against SFT" in out
    assert "FAILED  win rate" in out
    assert "not asked: only a candidate that passes all else is" in out
    assert call("r1", "--approve", *WHO) == 4
    assert production(root) is None
    assert promotion.with_alias(root, "challenger").tags["rlhf.round"] == "r1"  # type: ignore[union-attr]

    # Overridden, with what was overridden, on the version and on the run.
    assert call("r1", "--approve", "--override", *WHO) == 0
    assert production(root) == "r1"
    version = promotion.in_production(root)
    assert version is not None
    assert version.tags["override"].startswith("win rate: 0.")
    client = connect(tracking_uri(root)).client
    run = client.get_run(str(version.run_id))
    assert json.loads(run.data.tags["decision.1"])["override"] == version.tags["override"]
    saved = client.download_artifacts(
        str(version.run_id), f"promotion/version-{version.version}-decision-1.json", str(root)
    )
    verdict = VERDICT.validate_json(Path(saved).read_bytes())
    assert version.tags["override"] == "; ".join(verdict.failed)
    assert promotion.with_alias(root, "challenger") is None

    # It is not compared with itself, which it could only fail.
    capsys.readouterr()
    assert call("r1", "--approve", *WHO) == 2
    already = f"round r1 is in production already, as version {version.version}; there is nothing"
    assert capsys.readouterr().err.startswith(already)
    assert promotion.in_production(root).tags["override"] == version.tags["override"]  # type: ignore[union-attr]

    # Wins everywhere, but not within the default limits; within others it is promoted.
    capsys.readouterr()
    assert call("r2", "--approve", *WHO) == 4
    out = capsys.readouterr().out
    assert f"against version {version.version} in production (round r1)" in out
    assert "passed  win rate" in out
    assert "FAILED  KL to SFT" in out
    assert production(root) == "r1"
    assert call("r2", "--approve", *WHO, *LOOSE) == 0
    out = capsys.readouterr().out
    assert "passed  test prompts" in out
    assert "1.000 [0.806, 1.000] of 16 prompts by gold" in out, "16 of 16, by Wilson's interval"
    assert production(root) == "r2"
    assert promotion.in_production(root).tags["override"] == ""  # type: ignore[union-attr]

    # And back, by one command.
    assert call("--rollback", "--who", "Max", "--why", "too curt") == 0
    again = f"version {version.version} (round r1) is in production again"
    assert again in capsys.readouterr().out
    assert production(root) == "r1"
    assert call("--rollback", "--who", "Max", "--why", "once more") == 2
    assert "was the first in production" in capsys.readouterr().err
    assert call() == 0
    shown = f"production: rlhf-policy version {version.version}, rlhf.round r1"
    assert capsys.readouterr().out.startswith(shown)


def test_what_speaks_against_a_candidate_besides_its_answers_refuses_it_too(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probes = root / "results/reward/r2/probes.csv"
    text = probes.read_text()
    probes.write_text(text.replace(",true\n", ",false\n", 1))
    assert call("r2", *LOOSE) == 2
    assert "results/reward/r2 is not what dvc.lock records" in capsys.readouterr().err

    write_lock(root)
    assert call("r2", *LOOSE) == 4
    assert "FAILED  guards of the reward model  probe labels" in capsys.readouterr().out

    probes.write_text(text)
    write_lock(root)
    store, chosen = connect(tracking_uri(root)), promotion.candidate(root, "r2")
    store.client.set_logged_model_tags(chosen.model.model_id, {"withdrawn": "on 3 May"})
    assert call("r2", *LOOSE) == 4
    assert "FAILED  withdrawn data              on 3 May" in capsys.readouterr().out


def test_who_does_not_say_who_decides_or_asks_for_what_is_not_there_is_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in {
        ("r1", "--approve"): "a decision needs a name and a reason",
        ("r1", "--approve", "--who", " ", "--why", "x"): "a decision needs a name and a reason",
        ("--rollback",): "a decision needs a name and a reason",
        ("--rollback", "r1", *WHO): "--rollback takes no round",
        ("--approve", *WHO): "name the round",
        ("r1", "--reject", "--override", *WHO): "--override goes with --approve",
        ("r1", "--reject", "--who", "Lea", "--why", "x" * 2001): "--why: expected at most 2,000",
        ("r1", "--win-rate", "1.5"): "--win-rate: Input should be less than or equal to 1",
        ("r9",): "ppo@r9 has not run",
        ("--rollback", *WHO): "no policy is in production",
    }.items():
        assert call(*arguments) == 2, arguments
        assert words in capsys.readouterr().err
    assert promotion.with_alias(root, "challenger") is None
