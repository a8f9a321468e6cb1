"""`run.generation: server`: stages whose responses come from a server of the model's folder."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf.chat import decode_response
from rlhf.models import load_tokenizer
from rlhf.params.sampling import SamplingParams
from tasks import evaluate
from tasks.generation import client
from tasks.generation.client import Client
from tasks.running.outcome import StageEnd
from tasks.running.runner import run_stage
from tasks.running.staging import write_json_lines
from tests import stage_world
from tests.completions_server import CompletionsServer

ROOT = Path(__file__).resolve().parents[2]
NAP = 600 + os.getpid() / 1e7
"""Seconds; no other test's."""
SERVER = f"{sys.executable} {ROOT / 'tests/completions_server.py'}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    stage_world.build(root)
    stage_world.set_params(root, "sample", {"pairs": 12, "against_sft": 0.5})
    for split in ("train", "heldout"):
        folder = root / "data/prepared/preferences"
        folder.mkdir(parents=True, exist_ok=True)
        write_json_lines(folder / f"{split}.jsonl", [])
    prompts = (root / "data/prepared/prompts/train.jsonl").read_text().splitlines()
    for split in ("heldout", "test"):
        (root / f"data/prepared/prompts/{split}.jsonl").write_text("\n".join(prompts[:16]) + "\n")
    return root


@pytest.fixture
def served(root: Path) -> Iterator[CompletionsServer]:
    """One for each test: after an error, requests of the test before may still be under way."""
    server = CompletionsServer(root / "models/sft", "models/sft")
    server.start()
    yield server
    server.shutdown()


@pytest.fixture(autouse=True)
def from_a_server(root: Path) -> None:
    stage_world.set_params(root, "run", {"generation": "server"})


def baseline(root: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> int:
    monkeypatch.chdir(root)
    for name, value in {"RLHF_SHIPPER": "driver", "RLHF_EXECUTION": "t", **environment}.items():
        monkeypatch.setenv(name, value)
    return run_stage(
        "evaluate",
        evaluate.run_baseline,
        name="baseline",
        inputs=evaluate.BASELINE_INPUTS,
        arguments=[],
        errors=evaluate.OUR_ERRORS,
    )


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


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def outcome(root: Path, stage: str) -> str:
    return str(read(root / f".work/{stage}/outcome.json")["message"])


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


@pytest.mark.parametrize(("stage", "answers_of_sft"), [("evaluate@r1", 2), ("test", 1)])
def test_each_policy_of_a_stage_is_asked_of_the_server_that_has_it(
    stage: str,
    answers_of_sft: int,
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
    expected = {"models/sft": 4 + 16 * answers_of_sft, policy: 4 + 16}
    assert {folder: len(requests) for folder, requests in asked.items()} == expected
    differences = theirs.pop("served_logprob_difference")
    assert differences.keys() == asked.keys()
    assert all(0 <= difference < 1e-4 for difference in differences.values())
    assert theirs == ours
    assert "served_logprob_difference" not in ours


def test_a_policy_is_not_taken_for_another_ones_responses(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    """The second server says that it has the policy, and has SFT's base."""
    policy = "models/rounds/r1/policy"
    other = CompletionsServer(root / "models/base", policy)
    other.start()
    monkeypatch.chdir(root)
    monkeypatch.setenv("RLHF_SHIPPER", "driver")
    monkeypatch.setenv("RLHF_EXECUTION", "t")
    monkeypatch.setenv("RLHF_GENERATION_URL", f"{served.address} {other.address}")
    try:
        assert evaluate.main(["--round", "r1"]) == 2
    finally:
        other.shutdown()
    assert f"{other.address} serves another model as '{policy}'" in outcome(root, "evaluate@r1")


def test_a_server_that_stays_busy_is_one_clear_error(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.setattr(client, "PAUSES_SECONDS", (0.0, 0.1))
    served.busy = 1000

    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 1

    problem = f"run.generation: {served.address}: /completions failed; found 503 {{"
    assert outcome(root, "baseline").startswith(problem)
    said = capfd.readouterr().err
    assert said.count(problem) == 1
    assert "Traceback" not in said
    each = [json.dumps(body) for body in served.requests]
    assert max(map(each.count, each)) == 3, "the first attempt and two further ones"


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
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    monkeypatch.setenv("RLHF_GENERATION_KEY", "sk-canary-9\n")
    # What is on this machine needs no proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    Client(served.address, "").models()
    assert served.keys == {"Bearer sk-canary-9"}
    served.keys.clear()
    Client(f"http://127.0.0.1:{elsewhere.server_port}", "").models()
    elsewhere.shutdown()
    assert (keys, served.keys) == ({"Bearer sk-canary-9"}, {None})


def test_after_an_error_nobody_waits_for_the_other_requests():
    """In a process of its own: it has to end, too."""
    code = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from rlhf.params.sampling import SamplingParams
from tasks.generation.client import Client
from tasks.running.outcome import StageEnd
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        seed = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["seed"]
        if seed != 2:
            hanging.set()
            Event().wait()
        hanging.wait()
        self.send_error(400)
hanging = Event()
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
Thread(target=server.serve_forever, daemon=True).start()
client = Client(f"http://127.0.0.1:{server.server_port}", "m")
client.complete([[1]] * 3, SamplingParams(), stop_ids=[0], seeds=range(3))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "StageEnd: run.generation: http://127.0.0.1:" in done.stderr
    assert "/completions failed; found 400" in done.stderr


def test_a_server_that_does_not_know_the_stop_ids_is_found_out(served: CompletionsServer):
    """What it goes on to say would be part of the response."""

    def going_on(reply: Any) -> Any:
        found = {"tokens": ["token_id:5", "token_id:9", "token_id:5"], "token_logprobs": [-1.0] * 3}
        return {"choices": [reply["choices"][0] | {"logprobs": found, "finish_reason": "length"}]}

    one, sampling = Client(served.address, "models/sft"), SamplingParams(max_new_tokens=3)
    served.change = going_on
    (answer,) = one.complete([[4]], sampling, stop_ids=[7], seeds=[0])
    assert answer.ids == [5, 9, 5]
    with pytest.raises(StageEnd, match=r"nothing after a stop id \[7, 9\]; found \[5, 9, 5\]"):
        one.complete([[4]], sampling, stop_ids=[7, 9], seeds=[0])


def of_another_protocol(reply: Any) -> Any:
    found = reply["choices"][0]["logprobs"]
    return {"choices": [reply["choices"][0] | {"logprobs": found | {"tokens": ["a"] * 8}}]}


def without_figures(reply: Any) -> Any:
    reply["choices"][0]["logprobs"]["token_logprobs"] = []
    return reply


def cut_short(reply: Any) -> Any:
    found = {"tokens": ["token_id:9"] * 3, "token_logprobs": [-1.0] * 3}
    return {"choices": [reply["choices"][0] | {"logprobs": found, "finish_reason": "length"}]}


def saying_nothing(reply: Any) -> Any:
    found = {"tokens": [], "token_logprobs": []}
    return {"choices": [reply["choices"][0] | {"logprobs": found, "finish_reason": "stop"}]}


def less_likely(reply: Any) -> Any:
    found = reply["choices"][0]["logprobs"]
    found["token_logprobs"] = [number - 0.006 for number in found["token_logprobs"]]
    return reply


@pytest.mark.parametrize(
    ("change", "code", "problem"),
    [
        (of_another_protocol, 2, "expected token ids as `token_id:17`"),
        (without_figures, 2, "expected a log-probability for each token; found []"),
        (cut_short, 2, "expected 8 tokens or a stop id; found 3 tokens"),
        (saying_nothing, 2, "nothing to know the model by: all 4 responses are a stop id alone"),
        (less_likely, 2, "serves another model as 'models/sft': log-probabilities of"),
        (lambda _: {"error": "?"}, 2, "expected choices[0].logprobs.tokens; found {'error'"),
        (lambda reply: {"choices": [reply["choices"][0] | {"finish_reason": "content_filter"}]},
         2, "expected finish_reason stop or length; found content_filter"),
    ],
)  # fmt: skip
def test_what_a_server_gets_wrong_ends_the_stage(
    change: Callable[[Any], Any], code: int, problem: str,
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    served.change = change
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == code
    assert problem in outcome(root, "baseline")


def test_another_model_under_the_same_name_is_found_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    other = CompletionsServer(root / "models/base", "models/sft")
    other.start()
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=other.address) == 2
    other.shutdown()
    assert f"{other.address} serves another model as 'models/sft'" in outcome(root, "baseline")
    assert "expected at most 0.005 in float32" in outcome(root, "baseline")


def test_without_a_server_there_is_one_clear_error(
    root: Path, served: CompletionsServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RLHF_GENERATION_COMMAND", "no-such-vllm serve")
    assert baseline(root, monkeypatch) == 2
    assert "there is no command 'no-such-vllm serve'" in outcome(root, "baseline")
    assert "RLHF_GENERATION_URL names none" in outcome(root, "baseline")
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL="127.0.0.1:8000") == 2
    assert "'127.0.0.1:8000', expected an http(s) address" in outcome(root, "baseline")
    served.name = served.root = "a-model"
    assert baseline(root, monkeypatch, RLHF_GENERATION_URL=served.address) == 2
    assert "no server has models/sft under its path or as" in outcome(root, "baseline")
    assert "found a-model" in outcome(root, "baseline")
    monkeypatch.delenv("RLHF_GENERATION_URL")
    broken = f"{sys.executable} -c 'raise SystemExit(\"no GPU\")'"
    assert baseline(root, monkeypatch, RLHF_GENERATION_COMMAND=broken) == 1
    assert "ended with 1 before it was ready" in outcome(root, "baseline")
    assert "no GPU" in outcome(root, "baseline")


def test_the_folder_comes_before_options_of_the_command_as_vllm_wants_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "vllm").write_text(f"#!{sys.executable}\nimport sys\nraise SystemExit(sys.argv)\n")
    (tmp_path / "vllm").chmod(0o755)
    command = f"{tmp_path / 'vllm'} serve --gpu-memory-utilization 0.4"
    assert baseline(root, monkeypatch, RLHF_GENERATION_COMMAND=command) == 1
    said = "'serve', 'models/sft', '--gpu-memory-utilization', '0.4', '--host', '127.0.0.1'"
    assert said in outcome(root, "baseline")


def test_a_server_that_dies_is_quoted_by_its_first_error_and_not_by_its_last_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As vLLM 0.32 ends where its kernels do not know a size of the model, in three processes."""
    (tmp_path / "server.log").write_text(
        "(Worker pid=7) INFO 11-25 00:01:50 [a.py:1] Errors: none\n"
        "(EngineCore pid=8) ERROR 11-25 00:01:51 [core.py:9] Traceback (most recent call last):\n"
        "(EngineCore pid=8) ERROR 11-25 00:01:51 [core.py:1512] RuntimeError: head_dim=16\n"
        "(APIServer pid=9) ERROR 11-25 00:01:51 [a.py:9] vllm.v1.EngineDeadError: See above.\n"
        "  warnings.warn('resource_tracker: There appear to be %d '\n"
    )
    code = f"print(open({str(tmp_path / 'server.log')!r}).read()); raise SystemExit(3)"
    command = shlex.join([sys.executable, "-c", code])
    assert baseline(root, monkeypatch, RLHF_GENERATION_COMMAND=command) == 1
    assert outcome(root, "baseline").endswith("server.log: RuntimeError: head_dim=16")


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
    deadline = time.monotonic() + 60
    while sleeping():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
