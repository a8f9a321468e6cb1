"""`python -m experiments.dpo` on a tiny finished run: what it writes, what chooses a setting."""

import hashlib
import json
from pathlib import Path

import pytest

from experiments import dpo
from experiments.measuring import COMPUTE, measure, read_run
from rlhf.models import load_policy
from tasks import evaluate
from tests import stage_world
from tests.measured_run import measured_run

pytestmark = pytest.mark.long

SETTINGS = "betas: [0.1, 5.0]\nrates: [5e-3]\nepochs: 1\nbatch_size: 8\n"


def digest(root: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            whole.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured_run(tmp_path_factory.mktemp("dpo") / "run")


def test_each_setting_is_measured_beside_ppo_and_the_run_stays_as_it_is(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "dpo.yaml").write_text(SETTINGS)
    before = digest(run)

    code = dpo.main([str(run), "--params", str(tmp_path / "dpo.yaml"), "--out", str(tmp_path)])

    assert code == 0
    assert digest(run) == before
    found = json.loads((tmp_path / "dpo.json").read_text())
    assert [row["params"]["beta"] for row in found["attempts"]] == [0.1, 5.0]
    for row in found["attempts"]:
        assert row["dpo"]["gold"]["n"] == row["dpo"]["less_ppo"]["n"] == 10
        # PPO's invented gold scores are 5 to 14.
        gold, ppo = row["dpo"]["gold"]["mean"], 9.5
        assert row["dpo"]["less_ppo"]["mean"] == pytest.approx(gold - ppo)
    near, far = (row["dpo"]["kl"]["mean"] for row in reversed(found["attempts"]))
    assert 0 <= near < far
    best = max(found["attempts"], key=lambda row: row["heldout_accuracy"])
    assert found["chosen"]["beta"] == best["params"]["beta"]
    page = (tmp_path / "dpo.md").read_text()
    assert page.count("\n| 0 |") == 2
    assert "9.50 [9.00, 10.00]" in page


def test_a_response_that_was_cut_has_no_end_on_its_own_side(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    line = (run / "data/rounds/r1/preferences/train.jsonl").read_text().splitlines()[0]
    ends = ((True, False), (False, True))
    rows = [
        json.loads(line) | {"chosen_finished": chosen, "rejected_finished": rejected}
        for chosen, rejected in ends
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    finished = read_run(run)

    pairs = dpo.encode_pairs(finished.tokenizer, path)

    stops = finished.tokens.stops
    assert [(one.chosen[-1] in stops, one.rejected[-1] in stops) for one in pairs] == list(ends)


def test_held_out_labels_choose_the_setting_and_gold_does_not(run: Path, tmp_path: Path) -> None:
    """A rate that changes nothing orders fewer pairs as labelled, and has more gold here."""
    (tmp_path / "dpo.yaml").write_text(
        "betas: [5.0]\nrates: [1e-9, 5e-3]\nepochs: 2\nbatch_size: 8\n"
    )

    assert dpo.main([str(run), "--params", str(tmp_path / "dpo.yaml"), "--out", str(tmp_path)]) == 0

    found = json.loads((tmp_path / "dpo.json").read_text())
    still, moved = found["attempts"]
    assert still["heldout_accuracy"] < moved["heldout_accuracy"]
    assert still["dpo"]["gold"]["mean"] > moved["dpo"]["gold"]["mean"]
    assert found["chosen"] == {"beta": 5.0, "lr": 5e-3}


def test_a_policy_is_measured_as_the_stage_has_measured_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same draws, same figures: the round's own policy is ahead of itself by nothing."""
    root = tmp_path / "run"
    stage_world.build(root)
    heldout = root / "data/prepared/prompts/heldout.jsonl"
    heldout.write_text((root / "data/prepared/prompts/train.jsonl").read_text())
    stage_world.set_params(root, "ppo", {"optimiser": {"name": "adamw", "lr": 0.03}})
    assert stage_world.run(root, "ppo@r1") == 0
    monkeypatch.chdir(root)
    monkeypatch.setenv("RLHF_SHIPPER", "driver")
    assert evaluate.main(["--round", "r1"]) == 0
    recorded = json.loads((root / "results/evaluate/r1/metrics.json").read_text())
    assert abs(recorded["win_rate_vs_sft"]["mean"] - 0.5) > 0.01
    assert recorded["kl"]["mean"] > 0.1

    found = measure(read_run(root), load_policy(root / "models/rounds/r1/policy", COMPUTE.device))

    for name in ("gold", "win_rate_vs_sft", "kl"):
        assert found[name] == pytest.approx(recorded[name], abs=1e-4), name
    assert (found["less_ppo"]["low"], found["less_ppo"]["high"]) == (0.0, 0.0)
    assert found["finished"] == recorded["finished"]
    # And SFT, by its own samples, is as far behind the policy as that is ahead of it.
    of_sft = measure(read_run(root), load_policy(root / "models/sft", COMPUTE.device))
    assert (of_sft["win_rate_vs_sft"]["mean"], of_sft["kl"]["mean"]) == (0.5, 0.0)
    gain = found["gold"]["mean"] - of_sft["gold"]["mean"]
    assert of_sft["less_ppo"]["mean"] == pytest.approx(-gain, abs=1e-3)
