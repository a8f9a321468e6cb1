"""Data that the gate blocks, through real DVC, MLflow and Prefect: all of them say why."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from ruamel.yaml import YAML

# Importing Prefect makes a folder in the user's home: not for our tests.
os.environ.setdefault("PREFECT_HOME", tempfile.mkdtemp(prefix="prefect-"))
os.environ |= {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}

from prefect import State
from prefect.client.orchestration import get_client
from prefect.testing.utilities import prefect_test_harness

from flows.rlhf import rlhf
from tests.integration.test_validate_stage import Round, rows, write_rows

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

PIPELINE = """
stages:
  validate:
    foreach: ${rounds}
    do:
      cmd: exec python -m tasks.validate --round ${key}
      deps: [data/prepared, "data/rounds/${key}/judgments.jsonl"]
      outs: ["data/rounds/${key}/preferences", "results/validate/${key}"]
  reward:
    foreach: ${rounds}
    do:
      cmd: exec touch reward-was-trained
      deps: ["data/rounds/${key}/preferences"]
      outs: ["models/rounds/${key}/reward"]
"""
HELDOUT_FRACTION = 0.25
FORMER = {
    "data/rounds/r1/preferences/train.jsonl": "former preferences",
    "results/validate/r1/metrics.json": "{}",
    "models/rounds/r1/reward/model.safetensors": "former reward model",
}
EVALUATED = [f"Where is {n}?" for n in range(12)]
"""Prompts of the round that are also among those that policies are evaluated on."""


def is_trained_on(prompt: str) -> bool:
    digest = hashlib.sha256(prompt.lower().encode()).hexdigest()
    return int(digest[:16], 16) / 16**16 >= HELDOUT_FRACTION


LEAKS = sum(map(is_trained_on, EVALUATED))
REASON = f"evaluation_leaks: {LEAKS} rows where the prompt is used to train the reward model"


@dataclass(frozen=True)
class Blocked:
    """A round that went well and whose evaluation prompts were then replaced by its own."""

    root: Path
    repro: str
    """What `dvc repro` wrote."""
    state: State[Any]
    """How the flow ended."""


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blocked]:
    root = tmp_path_factory.mktemp("blocked")
    round_ = Round(root)
    round_.values["rounds"] = {"r1": round_.values["rounds"]["r1"]}
    round_.values |= {"final": "r1", "validate": {"heldout_fraction": HELDOUT_FRACTION}}
    YAML().dump(round_.values, root / "params.yaml")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("[core]\n  no_scm = true\n  analytics = false\n")
    (root / "dvc.yaml").write_text(PIPELINE)
    for path, content in FORMER.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "RLHF_MLFLOW_UI"):
            patch.delenv(name, raising=False)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.setenv("DVC_SITE_CACHE_DIR", str(root / "site"))
        # The flow sends to MLflow; one of the two is enough here.
        patch.setenv("RLHF_SHIPPER", "driver")
        assert dvc(root, "commit", "--force", "--quiet") == (0, "")
        write_rows(
            root / "data/prepared/prompts/heldout.jsonl",
            [{"prompt_id": f"e{n}", "prompt": prompt} for n, prompt in enumerate(EVALUATED)],
        )
        code, repro = dvc(root, "repro")
        assert code != 0
        with prefect_test_harness(server_startup_timeout=600):
            yield Blocked(root, repro, rlhf(workspace=root, return_state=True))


def dvc(root: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def asked(path: str, query: dict[str, Any]) -> Any:
    with get_client(sync_client=True) as client:
        return client.request("POST", path, json=query).json()


def test_reward_training_never_starts_and_what_it_made_before_is_untouched(blocked: Blocked):
    assert "Running stage 'validate@r1'" in blocked.repro
    assert "Running stage 'reward@r1'" not in blocked.repro
    assert not (blocked.root / "reward-was-trained").exists()
    reward = "models/rounds/r1/reward/model.safetensors"
    assert (blocked.root / reward).read_text() == FORMER[reward]
    # DVC removes the gate's own outputs before it runs; the way to get them back is said.
    back = "dvc checkout data/rounds/r1/preferences results/validate/r1"
    assert back in blocked.repro
    assert dvc(blocked.root, *back.split()[1:])[0] == 0
    assert (blocked.root / "results/validate/r1/metrics.json").read_text() == "{}"


def test_the_reason_is_on_the_screen_and_the_rows_are_in_the_quarantine(blocked: Blocked):
    assert 0 < LEAKS < len(EVALUATED)
    assert f"validate@r1: {REASON}" in blocked.repro
    aside = rows(blocked.root / ".work/validate@r1/blocked/quarantine.jsonl")
    leaked = [row for row in aside if "evaluation_leaks" in row["rules"]]
    assert [row["prompt"] for row in leaked] == list(filter(is_trained_on, EVALUATED))


def test_prefect_shows_the_reason_and_the_report(blocked: Blocked):
    assert (blocked.state.is_failed(), blocked.state.name) == (True, "Blocked")
    assert str(blocked.state.message).startswith(f"validate@r1: {REASON}")
    (page,) = asked("/artifacts/filter", {"artifacts": {"key": {"any_": ["validate-r1"]}}})
    assert page["type"] == "markdown"
    assert page["data"].startswith("# Preference data: BLOCKED\n")
    assert f"| evaluation_leaks | BLOCKS the data | {LEAKS} |" in page["data"]
    assert REASON.replace("_", r"\_") in page["description"]  # It is shown as Markdown.
    ours = {"flow_runs": {"id": {"any_": [str(blocked.state.state_details.flow_run_id)]}}}
    (run,) = asked("/task_runs/filter", ours)
    assert (run["name"], run["state"]["name"]) == ("validate@r1", "Blocked")
    assert run["state"]["message"].startswith(REASON)


def test_mlflow_shows_the_reason_the_counts_and_the_report(blocked: Blocked):
    client = MlflowClient(f"sqlite:///{blocked.root}/.work/mlflow/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments)
    runs = {run.data.tags.get("rlhf.stage"): run for run in found}
    assert "reward@r1" not in runs
    run = runs["validate@r1"]
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"].startswith(REASON)
    assert (run.data.metrics["passed"], run.data.metrics["rules/evaluation_leaks"]) == (0, LEAKS)
    report = Path(client.download_artifacts(run.info.run_id, "blocked/report.md"))
    assert report.read_text(encoding="utf-8").startswith("# Preference data: BLOCKED\n")
    verdict = Path(client.download_artifacts(run.info.run_id, "blocked/verdict.json"))
    assert json.loads(verdict.read_text())["verdict"] == "blocked"
