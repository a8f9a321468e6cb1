"""A client of OpenAI's completions protocol that speaks in token ids.

Texts would have to be encoded again, which need not give the ids that were sampled. So prompts are
sent as ids, and ids come back: vLLM writes them in the place of the tokens' texts when it is asked
to (`return_tokens_as_token_ids`).
"""

import http.client
import json
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rlhf.params.sampling import SamplingParams
from rlhf.shapes import Draws
from tasks.running.outcome import StageEnd

GENERATION = "run.generation"
"""Key of params.yaml that asks for a server outside PPO."""
KEY_VARIABLE = "RLHF_GENERATION_KEY"
"""Environment variable with the server's API key, if it wants one."""
AT_ONCE = 64
"""Requests in flight; the server makes batches of them."""
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""Before each further attempt at a request."""
TIMEOUT_SECONDS = 600.0
"""For one response."""
LIST_SECONDS = 30.0
"""For the names of the models: a server that is silent for longer has died or hangs."""
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Replies after which trying again may help."""

_TOKEN = re.compile(r"token_id:(\d+)")


class Completion(NamedTuple):
    """One response of the server."""

    ids: list[int]
    """With the stop id that ended it, if one did."""
    logprobs: list[float]
    """The server's own, in nats, for each id but a stop id that it left out."""


def seeds_of_responses(draws: Draws) -> list[int]:
    """A seed for each response, from the number that its first token is drawn with locally."""
    return [int(first * 2**31) for first in draws[:, 0].tolist()]


class Client:
    """One model of one server."""

    def __init__(self, address: str, model: str, *, key: str = GENERATION) -> None:
        """Nothing is asked yet.

        Args:
            address: base of the API, such as http://127.0.0.1:8000/v1.
            model: its name there.
            key: of params.yaml that asks for a server; errors begin with it.
        """
        self.address = address.rstrip("/")
        self.model = model
        self.key = key
        self._given_up = Event()

    def models(self) -> dict[str, str]:
        """The names of the server's models, and the folders they came from -> the names.

        Raises:
            StageEnd: it cannot be reached, or speaks another protocol.
        """
        reply = self._request("models", None)
        try:
            rows = reply["data"]
            return {
                str(row[key]): str(row["id"])
                for key in ("root", "id")
                for row in rows
                if row.get(key)
            }
        except (KeyError, TypeError, AttributeError):
            raise self._error("GET /models: expected data[].id", reply) from None

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        *,
        stop_ids: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Completion]:
        """One response to each prompt, in their order; each is drawn with its own seed.

        Raises:
            StageEnd: a request failed for good; the others are not waited for.
        """

        def one(prompt: Sequence[int], seed: int) -> Completion:
            body = {
                "model": self.model,
                "prompt": list(prompt),
                "seed": seed,
                "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "logprobs": 1,
                # What follows is vLLM's.
                "top_k": sampling.top_k or -1,
                "min_tokens": sampling.min_new_tokens,
                "stop_token_ids": list(stop_ids),
                # Else those of the folder's generation_config.json, if the server reads it.
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "return_tokens_as_token_ids": True,
            }
            return self._read(self._request("completions", body), sampling, stop_ids)

        self._given_up = Event()
        rows = zip(prompts, seeds, strict=True)
        return _at_once([partial(one, *row) for row in rows], self._given_up)

    def _read(self, reply: Any, sampling: SamplingParams, stop_ids: Sequence[int]) -> Completion:
        try:
            choice = reply["choices"][0]
            why, found = choice["finish_reason"], choice["logprobs"]
            tokens, logprobs = found["tokens"], [float(x) for x in found["token_logprobs"]]
            matches = [_TOKEN.fullmatch(token) for token in tokens]
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._error("expected choices[0].logprobs.tokens", reply) from None
        if None in matches:
            raise self._error(
                "expected token ids as `token_id:17` (return_tokens_as_token_ids, as in vLLM)",
                tokens[:3],
            )
        if len(logprobs) != len(tokens):
            raise self._error("expected a log-probability for each token", logprobs)
        if not all(map(math.isfinite, logprobs)):
            raise self._error("expected finite log-probabilities", logprobs)
        ids = [int(match[1]) for match in matches if match]
        ids = self._with_its_end(ids, choice, stop_ids)
        wanted = sampling.max_new_tokens
        if not ids or len(ids) > wanted + (why == "stop"):
            raise self._error(f"expected 1 to {wanted} tokens", len(ids))
        if why == "length" and len(ids) < wanted and ids[-1] not in stop_ids:
            # A limit of its own: --max-model-len, or max_new_tokens of generation_config.json.
            raise self._error(f"expected {wanted} tokens or a stop id", f"{len(ids)} tokens")
        return Completion(ids[: sampling.max_new_tokens], logprobs[: len(ids)])

    def _with_its_end(self, ids: list[int], choice: Any, stop_ids: Sequence[int]) -> list[int]:
        """The ids of a response with the stop id that ended it, if one did; nothing follows it."""
        if (why := choice["finish_reason"]) not in ("stop", "length"):
            raise self._error("expected finish_reason stop or length", why)
        if why == "stop" and (not ids or ids[-1] not in stop_ids):
            # Servers differ in whether they show the stop id itself.
            reason = choice.get("stop_reason")
            ids = [*ids, reason if reason in stop_ids else stop_ids[0]]
        if any(token in stop_ids for token in ids[:-1]):
            raise self._error(f"expected nothing after a stop id {list(stop_ids)}", ids)
        return ids

    def _request(self, path: str, body: dict[str, Any] | None) -> Any:
        for pause in (*PAUSES_SECONDS, None):
            try:
                return self._send(path, body)
            except urllib.error.HTTPError as error:
                problem: object = f"{error.code} {_words(error)}".strip()
                if error.code not in BUSY:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem = error
            except ValueError as error:
                raise self._error("expected JSON", error) from None
            if pause is None or self._given_up.wait(pause):
                break
        raise self._error(f"/{path} failed", problem, status="failed")

    def _send(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/{path}", data=data, headers=headers)
        if key := os.environ.get(KEY_VARIABLE, "").strip():
            # Where the server sends us elsewhere, the key does not go along.
            request.add_unredirected_header("Authorization", f"Bearer {key}")
        seconds = LIST_SECONDS if data is None else TIMEOUT_SECONDS
        with open_directly(request, seconds) as answer:
            return json.load(answer)

    def _error(self, expected: str, found: object, *, status: Any = "bad_input") -> StageEnd:
        return StageEnd(status, f"{self.key}: {self.address}: {expected}; found {str(found)[:300]}")


def _words(refusal: urllib.error.HTTPError) -> str:
    """What a server says of its refusal; nothing where that does not arrive."""
    try:
        return refusal.read(300).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""


def open_directly(request: urllib.request.Request, seconds: float) -> Any:
    """The answer; the user's proxy is not asked for what is on this machine."""
    here = urlsplit(request.full_url).hostname in ("127.0.0.1", "localhost", "::1")
    handlers = [urllib.request.ProxyHandler({})] if here else []
    return urllib.request.build_opener(*handlers).open(request, timeout=seconds)


def _at_once(requests: Sequence[Callable[[], Completion]], given_up: Event) -> list[Completion]:
    """The answers in order; the first error ends it, and nobody waits for what is still asking."""
    asked: SimpleQueue[int] = SimpleQueue()
    answered: SimpleQueue[tuple[int, Completion | Exception]] = SimpleQueue()
    for index in range(len(requests)):
        asked.put(index)

    def ask() -> None:
        with suppress(Empty):
            while not given_up.is_set():
                index = asked.get_nowait()
                try:
                    answered.put((index, requests[index]()))
                except Exception as error:
                    answered.put((index, error))

    for _ in range(min(AT_ONCE, len(requests))):
        # The process could not end before a thread of an executor, which may ask for minutes.
        Thread(target=ask, daemon=True).start()
    answers: dict[int, Completion] = {}
    try:
        while len(answers) < len(requests):
            index, answer = answered.get()
            if isinstance(answer, Exception):
                raise answer
            answers[index] = answer
    finally:
        given_up.set()
    return [answers[index] for index in range(len(requests))]
