"""Stage `label`: what it writes where nobody labels, and what it measures of a machine."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from preferences.loading import load_judgments
from preferences.records import pair_id
from preferences.withdrawals import tombstone
from tasks.reporting.annotators import read_annotators
from tasks.reporting.data import read_labels
from tasks.running.staging import write_json_lines
from tests import stage_world
from tests.unit.feedback.model_endpoint import Endpoint

JUDGMENTS = "data/rounds/r1/judgments.jsonl"


@pytest.fixture
def unlabelled(tmp_path: Path) -> Path:
    """A round of one pair after its stage `label`, with `label.annotators: none`."""
    yaml = YAML()
    params = yaml.load(stage_world.ROOT / "params.yaml")
    stage_world.make_tiny(params, rounds=1)
    params["label"]["annotators"] = "none"
    params["reward"]["model"] = "none"
    params["ppo"] |= {"rewards": {"learned": 0, "sentiment": 1}, "value_init": "zero"}
    yaml.dump(params, tmp_path / "params.yaml")
    (tmp_path / "data/withdrawn").mkdir(parents=True)
    (tmp_path / "data/withdrawn/judgments.jsonl").touch()
    (tmp_path / "data/rounds/r1").mkdir(parents=True)
    texts = ("Where is it?", "Here.", "There.")
    row = {
        "pair_id": pair_id(*texts), "round": "r1", "prompt_id": "p", "prompt": texts[0],
        "response_a": texts[1], "response_b": texts[2], "policy_a": "x", "policy_b": "y",
    }  # fmt: skip
    write_json_lines(tmp_path / "data/rounds/r1/comparisons.jsonl", [row])
    assert stage_world.run(tmp_path, "label@r1") == 0
    return tmp_path


def test_nobodys_judgments_are_a_file_of_which_dvc_does_not_warn(unlabelled: Path) -> None:
    copied = f"stages: {{copy: {{cmd: cp {JUDGMENTS} copy.jsonl, outs: [copy.jsonl]}}}}"
    (unlabelled / "dvc.yaml").write_text(copied)
    settings = {"cwd": unlabelled, "env": stage_world.environment(unlabelled)}
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], check=True, **settings)
    ran = subprocess.run([*dvc, "repro"], capture_output=True, text=True, **settings)
    assert ran.returncode == 0, ran.stderr
    assert "is empty" not in ran.stdout + ran.stderr


def test_nobodys_judgments_are_none_to_all_that_read_them(unlabelled: Path) -> None:
    metrics = json.loads((unlabelled / "results/label/r1/metrics.json").read_text())
    assert metrics == {"judgments": 0}
    assert list(load_judgments(unlabelled / JUDGMENTS)) == []
    assert read_annotators(unlabelled, ["r1"]) == []
    assert read_labels(unlabelled, ["r1"])["r1"][1] == 0


def measured_by_model(root: Path) -> dict[str, float]:
    """Metrics of the stage once the endpoint's model has judged."""
    yaml = YAML()
    with Endpoint() as endpoint:
        threading.Thread(target=endpoint.serve_forever, args=(0.01,), daemon=True).start()
        params = yaml.load(root / "params.yaml")
        judge = {"endpoint": endpoint.address, "model": "judge-1"}
        params["label"] |= {"annotators": "language_model", "language_model": judge}
        yaml.dump(params, root / "params.yaml")
        assert stage_world.run(root, "label@r1") == 0
        endpoint.shutdown()
    found: dict[str, float] = json.loads((root / "results/label/r1/metrics.json").read_text())
    return found


def test_how_often_a_language_model_keeps_to_its_verdict_is_measured(unlabelled: Path) -> None:
    """The endpoint's model knows "good" in either place, and names the second place elsewhere."""
    comparisons = unlabelled / "data/rounds/r1/comparisons.jsonl"
    (row,) = (json.loads(line) for line in comparisons.read_text().splitlines())
    other = row | {"response_a": "good", "pair_id": pair_id(row["prompt"], "good", "There.")}
    write_json_lines(comparisons, [row, other])

    assert measured_by_model(unlabelled) == {
        "judgments": 2, "chose_a": 1, "chose_tie": 1, "position_consistency": 0.5
    }  # fmt: skip


def test_a_language_model_that_was_withdrawn_gives_nothing_and_no_error(unlabelled: Path) -> None:
    tombstones = unlabelled / "data/withdrawn/judgments.jsonl"
    tombstones.write_text(tombstone("annotator", "judge-1", "01" * 16).line())

    assert measured_by_model(unlabelled) == {"judgments": 0}
