"""What `mlflow models serve` runs: MLflow keeps this file as code beside a policy's weights.

It needs mlflow, torch and transformers, and nothing of this project. Requests to /invocations:

    {"messages": [{"role": "user", "content": "..."}]}   -> a chat completion
    {"prompt": "..."}                                    -> a text completion
    {"inputs": ["...", ...]}                             -> {"predictions": ["...", ...]}

An entry of `inputs` may also be a request with `messages` or `prompt`. Text becomes one message of
the user in the policy's chat template; a tokenizer without a template takes it as it is.
`temperature` (0 takes the likeliest token), `top_p` and `max_tokens` stand beside `messages` and
`prompt`, or in `params` beside `inputs`.
"""

import math
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, cast

import torch
from jinja2 import TemplateError
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

SAMPLING = ("temperature", "top_p", "max_tokens")
KEYS = ("messages", "prompt", "model", *SAMPLING)
"""What a request may hold. `model` is taken and ignored: clients send it, and there is one."""

LEAST = 1e-6
"""Lowest temperature above 0: logits divided by less would be no numbers."""

_WITHOUT_DATE = "{%- set strftime_now = todays_date %}\n"
"""As in `rlhf.templates`: no prompt depends on the day."""

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a response is drawn; the model's signature has the defaults."""

    temperature: float
    top_p: float
    max_tokens: int

    def __post_init__(self) -> None:
        """Refuse values that generation cannot use."""
        temperature, top_p, length = self.temperature, self.top_p, self.max_tokens
        warm = _is(Real, temperature) and (temperature == 0 or LEAST <= temperature < math.inf)
        _expect(warm, "temperature", f"0 or a number from {LEAST:g} on", temperature)
        share = _is(Real, top_p) and 0 < top_p <= 1
        _expect(share, "top_p", "a number above 0 and at most 1", top_p)
        _expect(_is(Integral, length) and length >= 1, "max_tokens", "an integer from 1 on", length)

    def for_generate(self, room: int) -> dict[str, Any]:
        """Arguments of transformers' `generate`, for at most `room` tokens."""
        length = {"max_new_tokens": min(self.max_tokens, room)}
        if self.temperature == 0:
            return {**length, "do_sample": False}
        drawing = {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p}
        # By default, transformers samples from the fifty likeliest tokens only.
        return {**length, **drawing, "top_k": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response and what it took."""

    text: str
    prompt_tokens: int
    tokens: int
    ended: bool
    """It ends with the end token, rather than at a limit."""


class ServedPolicy:
    """A policy that responds to conversations and to bare text."""

    def __init__(self, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take over a loaded model; its own generation settings are dropped.

        But not the ids at which it stops. A hub model's settings may hold a `top_k` or a repetition
        penalty, with which the policy was neither trained nor evaluated.
        """
        named = lm.generation_config.eos_token_id  # One id, or several as in Llama 3.
        self._stops: list[int] = [named] if isinstance(named, int) else list(named or [])
        lm.generation_config = GenerationConfig(
            eos_token_id=self._stops or None, pad_token_id=self._stops[0] if self._stops else None
        )
        self._lm = lm
        self._tokenizer = tokenizer

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Respond to one request, or to each entry of a list of texts and requests.

        Args:
            model_input: a request as in the module's text, a text, or a list of either.
            params: `temperature`, `top_p` and `max_tokens`, with the signature's defaults.

        Raises:
            MlflowException: the request cannot be served; the message says why (status 400).
        """
        if isinstance(model_input, Mapping):
            return self._complete(model_input, params or {})
        entries = [model_input] if isinstance(model_input, str) else model_input
        _expect(isinstance(entries, list), "inputs", "a text, a request or a list", model_input)
        return [
            self._respond(entry, params or {}).text
            if isinstance(entry, str)
            else self._complete(entry, params or {})
            for entry in entries
        ]

    def _complete(self, request: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """The chat or text completion that a request asks for."""
        _expect(isinstance(request, Mapping), "inputs", "texts or requests", request)
        if unknown := [key for key in request if key not in KEYS]:
            raise _refusal(f"unknown key {unknown[0]!r}; a request may hold {', '.join(KEYS)}")
        if ("messages" in request) == ("prompt" in request):
            raise _refusal("a request holds either 'messages' or 'prompt'")
        own = {key: request[key] for key in SAMPLING if request.get(key) is not None}
        if "prompt" in request:
            _expect(isinstance(request["prompt"], str), "prompt", "a text", request["prompt"])
            response = self._respond(request["prompt"], {**params, **own})
            return _completion("text_completion", {"text": response.text}, response)
        response = self._respond(_messages(request["messages"]), {**params, **own})
        message = {"role": "assistant", "content": response.text}
        return _completion("chat.completion", {"message": message}, response)

    def _respond(self, prompt: Prompt, params: Mapping[str, Any]) -> Response:
        sampling = Sampling(**{key: params[key] for key in SAMPLING})
        prompt_ids = self._encode(prompt)
        limit = _longest(self._lm)
        room = limit - len(prompt_ids)
        if room < 1:
            raise _refusal(f"the prompt has {len(prompt_ids)} tokens; expected at most {limit - 1}")
        ids = torch.tensor([prompt_ids], device=self._lm.device)
        generate: Any = self._lm.generate
        generated = generate(
            ids, attention_mask=torch.ones_like(ids), **sampling.for_generate(room)
        )[0, len(prompt_ids) :].tolist()
        return Response(
            text=cast(
                str,
                self._tokenizer.decode(
                    generated, skip_special_tokens=True, clean_up_tokenization_spaces=False
                ),
            ),
            prompt_tokens=len(prompt_ids),
            tokens=len(generated),
            ended=generated[-1] in self._stops,
        )

    def _encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt as in training: the same as `rlhf.chat.encode_prompt`."""
        first: list[int] = []
        if self._tokenizer.chat_template is None:
            first = _first_ids(self._tokenizer)
        else:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            prompt = self._rendered(messages)
        if not isinstance(prompt, str):
            raise _refusal("this policy has no chat template; ask by text, not by 'messages'")
        if any("\ud800" <= letter <= "\udfff" for letter in prompt):
            raise _refusal(f"expected text, found half a character in {prompt!a:.200}")
        ids = list(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])
        return ids if ids[: len(first)] == first else [*first, *ids]

    def _rendered(self, messages: Sequence[Mapping[str, str]]) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=_WITHOUT_DATE + self._tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
            )
        except TemplateError as error:  # Such as: roles have to alternate.
            raise _refusal(f"the policy's chat template refuses this: {error}") from None
        return cast(str, rendered)


def _longest(lm: PreTrainedModel) -> int:
    """Tokens that a prompt and its response may have; MPT has a name of its own, BLOOM no end."""
    named = (getattr(lm.config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next(filter(None, named), sys.maxsize)


def _first_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before every text, as in `rlhf.chat`."""
    whole = list(tokenizer("a")["input_ids"])
    text = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    starts = range(len(whole) - len(text) + 1)
    return whole[: next(n for n in starts if whole[n : n + len(text)] == text)]


def _load_pyfunc(path: str) -> ServedPolicy:
    """MLflow's entry: the model folder in `path`, from safetensors only."""
    lm = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return ServedPolicy(lm.to(device).eval(), tokenizer)


def _messages(value: Any) -> list[Mapping[str, str]]:
    """The messages of a request, checked."""
    _expect(isinstance(value, list) and bool(value), "messages", "a list of messages", value)
    for number, message in enumerate(value):
        whole = isinstance(message, Mapping) and set(message) == {"role", "content"}
        _expect(
            whole and all(isinstance(text, str) for text in message.values()),
            f"messages[{number}]",
            "an object with the texts 'role' and 'content'",
            message,
        )
    return cast(list[Mapping[str, str]], value)


def _completion(kind: str, choice: Mapping[str, Any], response: Response) -> dict[str, Any]:
    """A response in OpenAI's form."""
    finish_reason = "stop" if response.ended else "length"
    return {
        "id": uuid.uuid4().hex,
        "object": kind,
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "finish_reason": finish_reason, **choice}],
        "usage": {
            "prompt_tokens": response.prompt_tokens,
            "completion_tokens": response.tokens,
            "total_tokens": response.prompt_tokens + response.tokens,
        },
    }


def _is(kind: type[Real] | type[Integral], value: object) -> bool:
    """Whether it is such a number; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _expect(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise _refusal(f"{name}: expected {expected}, found {found!r:.200}")


def _refusal(message: str) -> MlflowException:
    return MlflowException(message, error_code=INVALID_PARAMETER_VALUE)
