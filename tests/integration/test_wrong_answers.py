"""What a server gets wrong, or its lack, ends the stage with one clear error."""

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rlhf.params.sampling import SamplingParams
from tasks import evaluate
from tasks.generation import client
from tasks.generation.client import Client
from tasks.running.outcome import StageEnd
from tests.completions_server import CompletionsServer
from tests.integration.served_world import (  # noqa: F401
    ROOT,
    baseline,
    from_a_server_fixture,
    outcome,
    root_fixture,
    served_fixture,
)
from tests.waiting import PATIENCE_SECONDS


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


class WithoutItsWords(BaseHTTPRequestHandler):
    """As a proxy in front of a server that has gone: 502, and its page never comes."""

    asked = 0

    def do_GET(self) -> None:
        WithoutItsWords.asked += 1
        self.send_response(502)
        self.send_header("Content-Length", "500")
        self.end_headers()
        self.rfile.read()  # Until the client closes the connection.

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_refusal_whose_words_do_not_come_is_tried_again_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(client, "PAUSES_SECONDS", (0.0, 0.1))
    monkeypatch.setattr(client, "LIST_SECONDS", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), WithoutItsWords) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(StageEnd, match=r"/models failed; found 502$"):
            Client(f"http://127.0.0.1:{server.server_port}/v1", "m").models()
        server.shutdown()
    assert WithoutItsWords.asked == 3


def test_a_server_that_takes_a_connection_and_says_nothing_is_found_in_minutes(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its system takes the connection for it; a response itself may take ten minutes."""
    assert (1 + len(client.PAUSES_SECONDS)) * client.LIST_SECONDS < 180
    monkeypatch.setattr(client, "PAUSES_SECONDS", (0.0,))
    monkeypatch.setattr(client, "LIST_SECONDS", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(StageEnd, match=r"/models failed; found timed out$"),
    ):
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m").models()


@pytest.mark.long
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
Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
client = Client(f"http://127.0.0.1:{server.server_port}", "m")
client.complete([[1]] * 3, SamplingParams(), stop_ids=[0], seeds=range(3))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
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
