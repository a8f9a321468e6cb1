"""`run.generation: server`: stages whose responses come from a server of the model's folder."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf.chat import decode_response
from rlhf.models import load_tokenizer
from tasks import evaluate
from tasks.generation.client import Client
from tests import stage_world
from tests.completions_server import CompletionsServer
from tests.integration.served_world import (  # noqa: F401
    ROOT,
    baseline,
    from_a_server_fixture,
    outcome,
    read,
    root_fixture,
    served_fixture,
)
from tests.waiting import eventually

NAP = 600 + os.getpid() / 1e7
"""Seconds; no other test's."""
SERVER = f"{sys.executable} {ROOT / 'tests/completions_server.py'}"


def measure(root: Path, monkeypatch: pytest.MonkeyPatch, stage: str, *addresses: str) -> Any:
    """The metrics of `evaluate@r1` or `test`, whose responses come from there, if anywhere."""
    monkeypatch.chdir(root)
    settings = {"RLHF_SHIPPER": "driver", "RLHF_EXECUTION": "t"}
    if addresses:
        settings["RLHF_GENERATION_URL"] = " ".join(addresses)
    stage_world.set_params(root, "run", {"generation": "server" if addresses else "local"})
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    arguments = {"evaluate@r1": ["--round", "r1"], "test": ["--policy", "final"]}[stage]
    assert evaluate.main(arguments) == 0, outcome(root, stage)
    return read(root / f"results/{stage.replace('@', '/')}/metrics.json")


def test_the_likeliest_responses_of_a_server_are_those_of_the_stage_itself(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    sampling = {"temperature": 0.9, "max_new_tokens": 8}
    stage_world.set_params(root, "evaluate", {"sampling": sampling | {"top_k": 1}})
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 0
    asked = len(served.requests)
    theirs = read(root / "results/baseline/metrics.json")
    stage_world.set_params(root, "run", {"generation": "local"})
    assert baseline(root, monkeypatch) == 0
    ours = read(root / "results/baseline/metrics.json")
    stage_world.set_params(root, "evaluate", {"sampling": sampling})

    assert asked == len(served.requests) == 16 + 4, "each prompt once, and four for the comparison"
    difference = theirs.pop("served_logprob_difference")
    assert list(difference) == ["models/sft"]
    assert 0 < difference["models/sft"] < 1e-4
    assert theirs == ours
    assert "served_logprob_difference" not in ours


@pytest.mark.long
@pytest.mark.parametrize("stage", ["evaluate@r1", "test"])
def test_each_policy_of_a_stage_is_asked_once_of_the_server_that_has_it(
    stage: str,
    root: Path,
    served: CompletionsServer,
    monkeypatch: pytest.MonkeyPatch,
):
    """Round 1 starts from SFT, so it is the round before, too."""
    sampling = {"temperature": 0.9, "max_new_tokens": 8}
    stage_world.set_params(root, "evaluate", {"sampling": sampling | {"top_k": 1}})
    policy = "models/rounds/r1/policy"
    other = CompletionsServer(root / policy, policy)
    other.start()
    try:
        theirs = measure(root, monkeypatch, stage, served.address, other.address)
    finally:
        other.shutdown()
    ours = measure(root, monkeypatch, stage)
    stage_world.set_params(root, "evaluate", {"sampling": sampling})

    asked = {"models/sft": served.requests, policy: other.requests}
    # The first round began with SFT, which it is compared with anyway.
    expected = {"models/sft": 4 + 16, policy: 4 + 16}
    assert {folder: len(requests) for folder, requests in asked.items()} == expected
    differences = theirs.pop("served_logprob_difference")
    assert differences.keys() == asked.keys()
    assert all(0 <= difference < 1e-4 for difference in differences.values())
    assert theirs == ours
    assert "served_logprob_difference" not in ours


@pytest.mark.long
def test_every_request_says_all_that_the_draws_depend_on(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    served.busy = 2
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 0
    *_, last = served.requests
    known = {"model": "models/sft", "temperature": 0.9, "top_p": 1.0, "top_k": -1,
             "max_tokens": 8, "min_tokens": 0, "repetition_penalty": 1.0, "min_p": 0.0,
             "presence_penalty": 0.0, "frequency_penalty": 0.0}  # fmt: skip
    assert {key: last[key] for key in known} == known
    tokenizer = load_tokenizer(root / "models/sft")
    assert last["stop_token_ids"] == [tokenizer.eos_token_id]
    measured = [body for body in served.requests if body["temperature"] == 0.9]
    assert len({body["seed"] for body in measured}) == len({tuple(b["prompt"]) for b in measured})
    before = sorted(map(tuple, served.answers))

    served.answers.clear()
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 0
    assert sorted(map(tuple, served.answers)) == before, "the same seeds, whatever came between"


def test_a_model_is_known_by_the_folder_that_it_came_from(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    served.name = "a-model"
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 0
    assert {body["model"] for body in served.requests} == {"a-model"}


def test_the_key_goes_to_the_server_and_not_to_where_it_sends_us(
    served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.add(self.headers["Authorization"])
            self.send_response(307)
            self.send_header("Location", f"{served.address}/models")
            self.end_headers()

    keys: set[str | None] = set()
    elsewhere = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=elsewhere.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("RLHF_GENERATION_KEY", "sk-canary-9\n")
    # What is on this machine needs no proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    Client(served.address, "").models()
    assert served.keys == {"Bearer sk-canary-9"}
    served.keys.clear()
    Client(f"http://127.0.0.1:{elsewhere.server_port}", "").models()
    elsewhere.shutdown()
    assert (keys, served.keys) == ({"Bearer sk-canary-9"}, {None})


@pytest.mark.long
def test_sample_starts_a_server_for_each_of_its_models_and_ends_it(root: Path):
    code = stage_world.run(root, "sample@r1", RLHF_GENERATION_COMMAND=SERVER)
    assert code == 0, outcome(root, "sample@r1")
    tokenizer = load_tokenizer(root / "models/sft")
    rows = [
        json.loads(line)
        for line in (root / "data/rounds/r1/comparisons.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 12
    for row in rows:
        for side in ("a", "b"):
            ids = tokenizer(row[f"response_{side}"])["input_ids"]
            assert decode_response(tokenizer, ids) == row[f"response_{side}"]
    metrics = read(root / "results/sample/r1/metrics.json")
    assert set(metrics["served_logprob_difference"]) == {"models/sft"}
    assert not [line for line in running() if "completions_server" in line and str(root) in line]


@pytest.mark.long
def test_the_server_does_not_outlive_a_killed_stage(root: Path):
    stage = subprocess.Popen(
        [sys.executable, "-m", "tasks.evaluate", "--policy", "sft"],
        cwd=root,
        env=stage_world.environment(
            root,
            PYTHONPATH=str(ROOT),
            RLHF_GENERATION_COMMAND=f"{sys.executable} -c 'import time; time.sleep({NAP})'",
        ),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not sleeping():
        assert stage.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(stage.pid, signal.SIGKILL)
    stage.wait()
    eventually(lambda: not sleeping())


def sleeping() -> list[str]:
    return [line for line in running() if f"time.sleep({NAP}) models/sft" in line]


def running() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
