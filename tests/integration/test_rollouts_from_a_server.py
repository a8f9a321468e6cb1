"""`ppo.rollouts: server`: the stage starts a server of the current policy for each rollout."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import stage_world

pytestmark = pytest.mark.long

PPO = "ppo@r1"
SERVER = f"{sys.executable} {stage_world.ROOT / 'tests/completions_server.py'}"
"""Takes the arguments that a stage gives to vLLM."""
LIGHT = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({})
    def do_POST(self):
        WHAT
    def reply(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rollouts") / "world"
    stage_world.build(root)
    return root


@pytest.fixture(autouse=True)
def fresh(root: Path) -> None:
    stage_world.forget(root, PPO)
    rate = {"name": "adamw", "lr": 0.02, "schedule": "constant", "warmup_steps": 0}
    wanted = {"iterations": 2, "rollouts": "server", "lora": None, "optimiser": rate}
    stage_world.set_params(root, "ppo", wanted)


def run(root: Path, command: str) -> int:
    return stage_world.run(root, PPO, RLHF_GENERATION_COMMAND=command)


def outcome(root: Path) -> str:
    return str(json.loads((root / f".work/{PPO}/outcome.json").read_text())["message"])


def history(root: Path) -> list[dict[str, str]]:
    with (root / "results/ppo/r1/history.csv").open() as file:
        return list(csv.DictReader(file))


def metrics(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "results/ppo/r1/metrics.json").read_text())
    return found


def servers(root: Path) -> list[str]:
    """Command lines of what still runs for this world."""
    lines = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == root:
                lines.append((path / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return [line for line in lines if "completions_server" in line]


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "lora"])
def test_every_rollout_is_sampled_with_the_weights_of_its_time(
    root: Path,
    lora: dict[str, int] | None,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    """The weights move by more than the check of a server allows: an old one would be found."""
    caplog.set_level("INFO")
    stage_world.set_params(root, "ppo", {"lora": lora})
    assert run(root, SERVER) == 0, outcome(root)
    rows = history(root)
    assert len(rows) == 2
    for row in rows:
        assert float(row["policy/truncated_weights"]) == 0
        assert 0 < float(row["policy/sampler_gap"]) < 1e-4
    assert float(rows[-1]["policy/approx_kl"]) > 0
    assert metrics(root)["rollouts"] == "server"
    manifest = json.loads((root / "models/rounds/r1/policy/manifest.json").read_text())
    assert manifest["params"]["ppo"]["rollouts"] == "server"
    said = "a server samples the rollouts (ppo.rollouts), so the same run may give another policy"
    assert said in caplog.text
    assert "truncated +0" in capfd.readouterr().err
    assert not (root / f".work/{PPO}/rollouts").exists()
    assert servers(root) == []


def test_a_server_that_keeps_the_first_weights_is_found_out(root: Path):
    assert run(root, f"{SERVER} --instead models/sft") == 2
    assert "ppo.rollouts: http://127.0.0.1:" in outcome(root)
    assert "serves another model as '.work/ppo@r1/rollouts/policy-2'" in outcome(root)
    assert servers(root) == []
    assert not (root / "models/rounds/r1/policy").exists()


def reply(token: str, logprob: str) -> str:
    """One response of one token, as the server's code."""
    found = f'{{"tokens": ["{token}"], "token_logprobs": [{logprob}]}}'
    return f'self.reply({{"choices": [{{"finish_reason": "stop", "logprobs": {found}}}]}})'


@pytest.mark.parametrize(
    ("what", "code", "problem"),
    [
        ("sys.stderr.write('no memory'); sys.stderr.flush(); os._exit(9)", 1,
         "the server ended with 9; .work/ppo@r1/server.log: no memory"),
        ("self.reply({'choices': []})", 2,
         "expected choices[0].logprobs.tokens; found {'choices': []}"),
        (reply("token_id:70000", "-1.0"), 2, "expected token ids below "),
        (reply("token_id:17", "float('nan')"), 2, "expected finite log-probabilities; found [nan]"),
    ],
    ids=["ends", "nonsense", "no such id", "nan"],
)  # fmt: skip
def test_a_server_that_ends_or_says_nonsense_is_one_clear_error(
    what: str, code: int, problem: str, root: Path, tmp_path: Path
):
    (tmp_path / "server.py").write_text(LIGHT.replace("WHAT", what))
    assert run(root, f"{sys.executable} {tmp_path / 'server.py'}") == code
    assert problem in outcome(root)
    assert not (root / "models/rounds/r1/policy").exists()


def test_without_a_command_there_is_one_clear_error(root: Path):
    assert run(root, "no-such-vllm serve") == 2
    assert "ppo.rollouts is server, but there is no command 'no-such-vllm serve'" in outcome(root)


def test_log_probabilities_before_the_temperature_are_refused(root: Path):
    """vLLM without its option; here the stand-in gets another one after the stage's."""
    (root / "raw.sh").write_text(f'#!/bin/sh\nexec {SERVER} "$@" --logprobs-mode raw_logprobs\n')
    (root / "raw.sh").chmod(0o755)
    stage_world.set_params(root, "ppo", {"sampling": {"temperature": 0.5, "max_new_tokens": 8}})
    assert run(root, f"{root / 'raw.sh'}") == 2
    stage_world.set_params(root, "ppo", {"sampling": {"temperature": 0.9, "max_new_tokens": 8}})
    assert "or it gives them before the temperature" in outcome(root)
