r"""The stages with a real vLLM, where there is one: answers, log-probabilities, PPO's rollouts.

    RLHF_TEST_VLLM="$PWD/vllm-env/bin/vllm serve --enforce-eager" \
        python -m pytest -m slow tests/integration/test_vllm.py

docs/how-to/responses-from-a-server.md says how one is installed. Each start of the engine takes
minutes on a busy machine.
"""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import stage_world

COMMAND = os.environ.get("RLHF_TEST_VLLM", "")
"""How vLLM is started; options of its own may follow."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not COMMAND, reason="RLHF_TEST_VLLM names no command that starts vLLM"),
]

SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
"""For vLLM on a CPU: a gibibyte for its cache (by default it takes most of the memory)."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32: vLLM's attention on a CPU has no smaller ones."""
    root = tmp_path_factory.mktemp("vllm") / "world"
    stage_world.build(root, hidden_size=64)
    (root / "data/prepared/preferences").mkdir()
    for split in ("train", "heldout"):
        (root / f"data/prepared/preferences/{split}.jsonl").touch()
    return root


def run(root: Path, stage: str) -> None:
    code = stage_world.run(root, stage, RLHF_GENERATION_COMMAND=COMMAND, **SMALL)
    assert code == 0, read(root / f".work/{stage}/outcome.json")["message"]
    assert servers(root) == []


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def servers(root: Path) -> list[Path]:
    """What of vLLM still runs in this world; its processes rename themselves."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
            if (path / "cwd").readlink() == root and (b"\0serve\0" in line or b"VLLM::" in line):
                found.append(path)
        except OSError:
            continue
    return found


def test_a_stage_has_its_responses_from_vllm(root: Path):
    stage_world.set_params(root, "run", {"generation": "server"})
    stage_world.set_params(root, "sample", {"pairs": 12, "against_sft": 0.5})
    run(root, "sample@r1")
    stage_world.set_params(root, "run", {"generation": "local"})
    difference = read(root / "results/sample/r1/metrics.json")["served_logprob_difference"]
    assert 0 < difference["models/sft"] < 1e-5


def test_ppo_has_each_rollout_from_a_vllm_of_its_policy(root: Path):
    """At a temperature: vLLM's log-probabilities have to be those after it."""
    stage_world.forget(root, "ppo@r1")
    rate = {"name": "adamw", "lr": 0.02, "schedule": "constant", "warmup_steps": 0}
    sampling = {"temperature": 0.7, "max_new_tokens": 8}
    wanted = {"iterations": 2, "rollouts": "server", "optimiser": rate, "sampling": sampling}
    stage_world.set_params(root, "ppo", wanted)
    run(root, "ppo@r1")
    with (root / "results/ppo/r1/history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row in rows:
        assert float(row["policy/truncated_weights"]) == 0
        assert 0 < float(row["policy/sampler_gap"]) < 1e-5
