"""A stand-in for vLLM: OpenAI's completions protocol over a model folder, one prompt at a time.

Computes with transformers alone, without a cache. As a command, it takes the arguments that the
stages give: `python tests/completions_server.py FOLDER --port 8000 ...`.
"""

import argparse
import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch
from transformers import AutoModelForCausalLM

Answer = tuple[int, Any]


class CompletionsServer(ThreadingHTTPServer):
    """Serves one model; `requests` has every body that came and `answers` what was replied."""

    daemon_threads = True

    def __init__(self, folder: Path, name: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.lm = AutoModelForCausalLM.from_pretrained(folder)
        self.lm.eval()
        self.name, self.root = name, str(folder)
        self.requests: list[dict[str, Any]] = []
        self.answers: list[list[int]] = []
        self.busy = 0
        """So many completions are refused with 503 first."""
        self.change: Callable[[Any], Any] = lambda reply: reply
        """Applied to each reply of /v1/completions."""
        self.after_temperature = False
        """Its log-probabilities are of what it draws from; else of the model, as vLLM's are."""
        self.keys: set[str | None] = set()
        """The `Authorization` of the requests."""
        self.one_at_a_time = Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def start(self) -> None:
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str, body: Any) -> Answer:
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.name, "root": self.root}]}
        if path != "/v1/completions" or body["model"] != self.name:
            return 404, {"error": {"message": f"no {path} or no such model"}}
        with self.one_at_a_time:
            self.requests.append(body)
            if self.busy > 0:
                self.busy -= 1
                return 503, {"error": {"message": "try again"}}
            return 200, self.change(self._complete(body))

    @torch.no_grad()
    def _complete(self, body: Any) -> dict[str, Any]:
        ids, logprobs, why = list(body["prompt"]), [], "length"
        generator = torch.Generator().manual_seed(body["seed"])
        for step in range(body["max_tokens"]):
            logits = self.lm(torch.tensor([ids])).logits[0, -1]
            drawn = logits / body["temperature"]
            if step < body["min_tokens"]:
                drawn[body["stop_token_ids"]] = -torch.inf
            if body["top_k"] > 0:
                drawn[drawn < drawn.topk(body["top_k"]).values[-1]] = -torch.inf
            token = int(torch.multinomial(drawn.softmax(-1), 1, generator=generator))
            ids.append(token)
            told = drawn if self.after_temperature else logits
            logprobs.append(float(told.log_softmax(-1)[token]))
            if token in body["stop_token_ids"]:
                why = "stop"
                break
        new = ids[len(body["prompt"]) :]
        self.answers.append(new)
        found = {"tokens": [f"token_id:{token}" for token in new], "token_logprobs": logprobs}
        return {"choices": [{"index": 0, "text": "", "logprobs": found, "finish_reason": why}]}


class _Handler(BaseHTTPRequestHandler):
    server: CompletionsServer

    def do_GET(self) -> None:
        self.server.keys.add(self.headers["Authorization"])
        self._reply(*self.server.answer(self.path, None))

    def do_POST(self) -> None:
        self.server.keys.add(self.headers["Authorization"])
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._reply(*self.server.answer(self.path, body))

    def _reply(self, status: int, reply: Any) -> None:
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    for name in ("--host", "--dtype", "--seed", "--generation-config"):
        parser.add_argument(name)
    parser.add_argument("--logprobs-mode", default="raw_logprobs")
    parser.add_argument("--instead", type=Path, help="serve this folder, whatever is asked for")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.instead or options.folder
    server = CompletionsServer(folder, options.served_model_name, options.port)
    server.after_temperature = options.logprobs_mode == "processed_logprobs"
    sys.stdout.write("ready\n")
    server.serve_forever()
