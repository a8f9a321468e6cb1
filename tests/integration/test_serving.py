"""A promoted policy behind `mlflow models serve`: asked by messages and by text, over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA
from transformers import LlamaForCausalLM

from flows.servers import any_free_port
from rlhf.chat import Prompt, decode_rows, encode_prompt
from rlhf.draws import draw_table
from rlhf.generation import sample_responses
from rlhf.params.sampling import SamplingParams
from tasks.tracking.models import log_model
from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.promotion import ALIAS, MODEL, Decision, candidate, decide
from tasks.tracking.shipping import ship, tracking_uri
from tasks.tracking.spool import Output, RunStart, open_spool
from tasks.tracking.store import connect
from tests.tiny import llama, tokenizer

pytestmark = pytest.mark.long

POLICY = "models/rounds/r1/policy"
TEXTS = ("Sam: where is my parcel?", "my lamp is broken")
CONVERSATION = [
    {"role": "user", "content": "my lamp is broken"},
    {"role": "assistant", "content": "I am sorry, Kim."},
    {"role": "user", "content": "I want a new one."},
]
TOKENS = 12
GREEDY = {"temperature": 0, "max_tokens": TOKENS}


def policy() -> LlamaForCausalLM:
    """Random weights that say something else to every prompt."""
    return llama(seed=7, vocabulary=len(tokenizer()), spread=20.0)


def save_policy(folder: Path) -> None:
    policy().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace whose policy of round r1 is in MLflow and in production."""
    folder = tmp_path_factory.mktemp("serving")
    save_policy(folder / POLICY)
    (folder / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  ppo@r1:\n    cmd: python -m tasks.ppo --round r1\n    outs:\n"
        f"    - {{path: {POLICY}, md5: feed.dir}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow/mlflow.db")
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        spool = open_spool(folder, RunStart("ppo@r1", "run-1", {}, {}, {}))
        spool.finish("FINISHED", {}, [Output("policy", Path(POLICY))])
        assert ship(spool.folder).state == "complete"
        assert tag_outputs(folder) == 1
        decide(folder, candidate(folder, "r1"), Decision(choice="approve", who="Lea", why="good"))
        yield folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[str]:
    """The address of `mlflow models serve`, started away from the repository and its code."""
    url, elsewhere = f"http://127.0.0.1:{any_free_port()}", root / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["-m", f"models:/{MODEL}@{ALIAS}", "--port", url.rpartition(":")[2]]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    with (elsewhere / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=elsewhere, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 300
        while not _answers(f"{url}/ping"):
            assert process.poll() is None, (elsewhere / "log").read_text()
            assert time.monotonic() < deadline, (elsewhere / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:  # Nobody listens yet, or who does still loads the model.
        return False


def ask(server: str, request: dict[str, Any]) -> Any:
    """The reply to a request, or the message of the refusal."""
    call = urllib.request.Request(
        f"{server}/invocations",
        data=json.dumps(request).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(call, timeout=60) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as refusal:
        if refusal.code != 400:
            raise
        return json.loads(refusal.read())["message"]


def our_response(root: Path, prompt: Prompt) -> str:
    """What the project's own generation makes of a prompt, always taking the likeliest token."""
    ids = torch.tensor([encode_prompt(tokenizer(), prompt)])
    responses = sample_responses(
        policy(),
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        SamplingParams(top_k=1, max_new_tokens=TOKENS),
        stop_ids=(tokenizer().eos_token_id,),
        pad_id=tokenizer().pad_token_id,
        draws=draw_table(0, ids.tolist(), TOKENS),
    )
    return decode_rows(tokenizer(), responses.response_ids, responses.response_mask)[0]


@pytest.mark.long
def test_the_served_policy_continues_a_conversation_as_our_own_generation_does(
    root: Path, server: str
) -> None:
    reply = ask(server, {"messages": CONVERSATION, **GREEDY})
    assert reply["object"] == "chat.completion"
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": our_response(root, CONVERSATION)}
    prompt_tokens = len(encode_prompt(tokenizer(), CONVERSATION))
    assert reply["usage"]["prompt_tokens"] == prompt_tokens
    assert reply["usage"]["total_tokens"] == prompt_tokens + reply["usage"]["completion_tokens"]


def test_bare_text_is_put_into_the_policys_chat_template(root: Path, server: str) -> None:
    expected = [our_response(root, text) for text in TEXTS]
    assert len(set(expected)) == 2
    assert all(expected)
    assert ask(server, {"inputs": list(TEXTS), "params": GREEDY}) == {"predictions": expected}
    assert ask(server, {"inputs": TEXTS[0], "params": GREEDY}) == {"predictions": expected[:1]}
    completion = ask(server, {"prompt": TEXTS[0], **GREEDY})
    assert [choice["text"] for choice in completion["choices"]] == expected[:1]


def test_a_conversation_may_come_as_inputs_too(root: Path, server: str) -> None:
    expected = our_response(root, CONVERSATION)
    (reply,) = ask(server, {"inputs": [{"messages": CONVERSATION}], "params": GREEDY})[
        "predictions"
    ]
    assert reply["choices"][0]["message"]["content"] == expected
    reply = ask(server, {"inputs": {"messages": CONVERSATION, **GREEDY}})["predictions"]
    assert reply["choices"][0]["message"]["content"] == expected


def test_a_request_without_params_is_sampled_and_ends(server: str) -> None:
    reply = ask(server, {"messages": CONVERSATION})
    assert reply["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        ({"messages": "hello"}, "messages: expected a list"),
        ({"messages": []}, "messages: expected a list"),
        ({"messages": [{"role": "user"}]}, "messages[0]: expected"),
        ({"messages": CONVERSATION, "n": 2}, "'n'"),
        ({"messages": CONVERSATION, "max_tokens": 0}, "max_tokens: expected"),
        ({"messages": CONVERSATION, "temperature": -1}, "temperature: expected"),
        ({"messages": CONVERSATION, "top_p": 0}, "top_p: expected"),
        ({"inputs": 7}, "inputs: expected"),
        ({"inputs": ["a" * 200]}, "expected at most 127"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_clear_words(
    server: str, request_body: dict[str, Any], words: str
) -> None:
    assert words in ask(server, request_body)


def test_a_policy_is_logged_with_the_chat_task_metadata_and_signature(root: Path) -> None:
    info = mlflow.models.get_model_info(f"models:/{MODEL}@{ALIAS}")
    assert info.metadata == {"task": "llm/v1/chat"}
    assert info.flavors["transformers"]["inference_task"] == "llm/v1/chat"
    assert info.signature.inputs == CHAT_MODEL_INPUT_SCHEMA
    assert info.signature.outputs == CHAT_MODEL_OUTPUT_SCHEMA


def test_a_policy_without_a_chat_template_takes_text_as_it_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    folder = tmp_path / "policy"
    save_policy(folder)
    (folder / "chat_template.jinja").unlink()
    store = connect(tracking_uri(root))
    run = store.client.create_run(store.experiment).info.run_id
    model = log_model(store, run, "policy", folder, {"rlhf.output": "models/sft"})

    served = mlflow.pyfunc.load_model(f"models:/{model}")
    plain = tokenizer()(TEXTS[0], add_special_tokens=False)["input_ids"]
    expected = policy().generate(
        torch.tensor([plain]), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
    )
    text = tokenizer().decode(expected[0, len(plain) :], skip_special_tokens=True)
    assert served.predict([TEXTS[0]], params=GREEDY) == [text]
    with pytest.raises(mlflow.MlflowException, match="no chat template"):
        served.predict({"messages": CONVERSATION})
