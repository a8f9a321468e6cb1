"""What both sides of the speed benchmark share: models and data on disk, a clock, the ceiling.

Imports torch and transformers alone, so that the environment that has TRL can run it, too.
"""

import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

PPO_WORKS = ("ppo-separate", "ppo-shared")
WORKS = (*PPO_WORKS, "sft", "reward")
PADDED_WORKS = ("ppo-separate-padded", "ppo-shared-padded")
"""Ours without packed rows, for the sizes of QUICK."""
QUICK = ("tiny", "0.6M", "4M")
"""Sizes where another iteration of PPO takes seconds of a CPU."""
PAD, END = 0, 1
PROMPT, ANSWER = 32, 64
"""Tokens of a prompt, and most tokens of a response."""
LONG, LONG_PROMPT, LONG_ANSWER = "long", 256, 512
"""Uniform lengths as real rounds on a GPU have them (docs/models.md); of our PPO alone."""
LONG_MICRO = 8
"""Responses of these at a time: 1B, each layer's activations kept, then fits into 80 GB."""
BATCH = 16
"""Examples or pairs of a training step, and responses of a PPO minibatch."""
STEPS = 9
"""Steps of SFT and reward training; the first is not counted."""
PASSES, MINIBATCHES = 4, 4
RATE = 1e-6
"""So low that no response gets longer or shorter on the way."""
ENDING = 1 / 32
"""Chance that a ragged response ends at a token, by which the lengths are drawn beforehand. It is
the policy's own, too."""
HITS_END, MISSES_END = 1e-9, 1 / 2
"""A draw that gives the end token, and above which none does (`force_lengths`)."""

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"vocabulary": 64, "width": 32, "mlp": 64, "layers": 2, "heads": 2, "responses": 16},
    "0.6M": {"vocabulary": 1233, "width": 128, "mlp": 384, "layers": 2, "heads": 4},
    "4M": {"vocabulary": 2048, "width": 256, "mlp": 688, "layers": 4, "heads": 4, "tied": False},
    "135M": {"vocabulary": 49152, "width": 576, "mlp": 1536, "layers": 30, "heads": 9, "micro": 4},
    "1B": {"vocabulary": 128256, "width": 2048, "mlp": 8192, "layers": 16, "heads": 32, "micro": 4},
}
"""The last two have the shapes of SmolLM2-135M and Llama-3.2-1B, with as many key-value heads as
heads; all weights are random. On a CPU PPO of ours splits their minibatches in float32 as the
presets do."""


def works_of(size: str, rows: list[Any]) -> tuple[str, ...]:
    """What our side measures; of long responses PPO alone."""
    if is_long(rows):
        return PPO_WORKS
    return WORKS + PADDED_WORKS if size in QUICK else WORKS


def responses_of(size: str) -> int:
    """Responses of a PPO iteration."""
    return int(SIZES[size].get("responses", PASSES * BATCH))


def micro_batch_of(size: str, device: str, precision: str, rows: list[Any]) -> int:
    """Responses of a minibatch of PPO that our side computes at a time: on a GPU all short ones.

    A CPU that has products in bfloat16 makes them of many rows at a time far faster.
    """
    if device == "cpu":
        return int(SIZES[size].get("micro", BATCH)) if precision == "float32" else BATCH
    return LONG_MICRO if is_long(rows) else BATCH


def is_long(rows: list[Any]) -> bool:
    """Whether responses are those of LONG."""
    return bool(rows[0]["most"] == LONG_ANSWER)


def warming(device: str, side: str, size: str) -> int:
    """Iterations of PPO before the one that is timed, which is like all that follow in a training.

    On a GPU libraries load their kernels in the first, and ours also records what it repeats. On a
    CPU the first asks the system for its memory.
    """
    if device == "cuda":
        return {"ours": 2, "trl": 1}[side]
    return 1 if size in QUICK else 0


def write_world(folder: Path, size: str, lengths: str, device: str = "cpu") -> None:
    """Policy, classifier, tokenizer and token ids for one size and one kind of lengths.

    The device draws the weights.
    """
    torch.manual_seed(0)
    config = _configuration(size)
    with torch.device(device):
        policy = LlamaForCausalLM(config).eval()
        set_ending(policy, ENDING if lengths == "ragged" else 0.0)
        policy.save_pretrained(folder / "policy")
        LlamaForSequenceClassification(config).eval().save_pretrained(folder / "reward")
    vocabulary = {f"t{number}": number for number in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t2"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token="t1")
    fast.save_pretrained(folder / "policy")
    draws = torch.Generator().manual_seed(1)

    def ids(least: int, most: int) -> list[int]:
        count = int(torch.randint(least, most + 1, (), generator=draws))
        found: list[int] = torch.randint(2, config.vocab_size, (count,), generator=draws).tolist()
        return found

    prompt, answer = (LONG_PROMPT, LONG_ANSWER) if lengths == LONG else (PROMPT, ANSWER)
    least = 4 if lengths == "ragged" else answer - 1
    count = responses_of(size)
    ends: list[int | None] = [None] * max(STEPS * BATCH, count)
    if lengths == "ragged":
        ends[:count] = drawn_lengths(count)
    rows = [
        {"prompt": ids(prompt, prompt), "one": [*ids(least, answer - 1), END],
         "other": [*ids(least, answer - 1), END], "length": length, "most": answer}
        for length in ends
    ]  # fmt: skip
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def drawn_lengths(count: int) -> list[int | None]:
    """How many tokens each response is to have, its end among them; None: cut, without an end.

    The quantiles of responses that end at each token with chance ENDING, in random order: of any
    number of responses the mean is what that chance gives, 27.8 of 64 tokens.
    """
    lengths: list[int | None] = []
    for row in range(count):
        length = math.ceil(math.log(1 - (row + 0.5) / count) / math.log(1 - ENDING))
        lengths.append(length if length <= ANSWER else None)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2)).tolist()
    return [lengths[place] for place in order]


def lengths_by_prompt(rows: list[Any]) -> dict[tuple[int, ...], int | None]:
    """The length that is asked of the response to each prompt."""
    return {tuple(row["prompt"]): row["length"] for row in rows}


def force_lengths(draws: torch.Tensor, lengths: list[int | None]) -> torch.Tensor:
    """Draws with which a policy of a ragged world ends each response at its length.

    The end token is the first that has any chance, so small draws give it.
    """
    forced = MISSES_END + draws * (1 - MISSES_END)
    for row, length in enumerate(lengths):
        if length is not None:
            forced[row, length - 1] = HITS_END
    return forced


def force_ends(scores: torch.Tensor, step: int, lengths: list[int | None]) -> torch.Tensor:
    """The same for logits: at its length a response can only end, before it everything else."""
    forced = scores.clone()
    forced[:, END] = -torch.inf
    ending = torch.tensor([length == step + 1 for length in lengths], device=scores.device)
    forced[ending] = -torch.inf
    forced[ending, END] = 0.0
    return forced


def _configuration(size: str) -> LlamaConfig:
    shape = SIZES[size]
    return LlamaConfig(
        vocab_size=shape["vocabulary"],
        hidden_size=shape["width"],
        intermediate_size=shape["mlp"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        max_position_embeddings=LONG_PROMPT + LONG_ANSWER,
        tie_word_embeddings=shape.get("tied", True),
        num_labels=1,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )


@torch.no_grad()
def set_ending(policy: PreTrainedModel, chance: float) -> None:
    """Give the end token the same chance at every position; 0: no response ever ends.

    All embeddings share a large first entry, to which no layer adds; the end token's logit is made
    of that entry. The one token before it in the vocabulary, padding, has no chance.
    """
    policy.get_input_embeddings().weight[:, 0] = 1.0
    for layer in policy.base_model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head = policy.get_output_embeddings().weight
    probe = torch.arange(2, 34)[None] % policy.config.vocab_size
    first = policy.base_model(input_ids=probe).last_hidden_state[0, -1, 0]
    odds = chance / (1 - chance) * (policy.config.vocab_size - 1)
    logit = torch.tensor(odds).log() if chance else torch.tensor(-30.0)
    common = head[2:, 0].mean()
    for token, height in ((PAD, -30.0), (END, logit)):
        head[token] = 0.0
        head[token, 0] = common + height / first


class Clock:
    """CPU seconds of all threads; on a GPU seconds by the wall, once it has finished."""

    def __init__(self, device: str) -> None:
        self.device = device

    def now(self) -> float:
        if self.device != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def peak_bytes(device: str) -> int:
    """Most memory so far: of the GPU, or the resident memory of the process.

    Of a GPU it is what torch reserved: the activations of recorded passes count as free between
    two repetitions, though nobody else can have their memory.
    """
    if device == "cuda":
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def kernels() -> str:
    """The widest instructions that torch's own kernels take in this process, such as AVX2."""
    found: str = torch.backends.cpu.get_cpu_capability()
    return found


def ceiling(size: str, device: str, precision: str, rows: list[Any], repeats: int = 30) -> float:
    """Floating-point operations a second of the MLP's product at the shape of a minibatch."""
    shape = SIZES[size]
    tokens = BATCH * (len(rows[0]["prompt"]) + rows[0]["most"])
    kind = {"device": device, "dtype": getattr(torch, precision)}
    one = torch.randn(tokens, shape["width"], **kind)
    other = torch.randn(shape["width"], shape["mlp"], **kind)
    seconds = _quickest(lambda: one @ other, device, 4 if device == "cpu" else 100, repeats)
    return 2 * tokens * shape["width"] * shape["mlp"] / seconds


def _quickest(product: Callable[[], object], device: str, times: int, repeats: int) -> float:
    """Seconds of one product, of so many in a row, in the quickest of the repetitions."""
    clock = Clock(device)

    def products() -> None:
        for _ in range(times):
            product()

    products()
    if device == "cuda":
        products = recorded(products)
    best = float("inf")
    for _ in range(repeats):
        began = clock.now()
        products()
        best = min(best, clock.now() - began)
    return best / times


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """The same, asked of a GPU at once: to ask for a small product takes longer than to compute it.

    (2026-11-26, an H100 behind a slow host: products of 2.7 GFLOP at 41 TFLOP/s, asked one by one.)
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    repeat: Callable[[], None] = graph.replay
    return repeat


def bandwidth(device: str, repeats: int = 5) -> float:
    """Bytes a second that the product of a large matrix and a vector reads.

    That is what decoding a single row does; the matrix of 1 GiB is larger than all caches. On a GPU
    a product is over in a quarter of a millisecond, of which asking for it is a part: so several.
    """
    matrix = torch.ones(2**15, 2**13, device=device)
    vector = torch.ones(2**13, device=device)
    times = 1 if device == "cpu" else 20
    return matrix.nbytes / _quickest(lambda: matrix @ vector, device, times, repeats)
