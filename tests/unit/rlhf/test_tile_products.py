"""In bfloat16 a processor with tiles rounds the factors of large products, and nothing else.

Where these tests run with portable bits, or on a processor without tiles, oneDNN leaves such
products float32: which of them are asked for is the same everywhere. The last test asks a process
with native bits for their digits.
"""

import contextlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf import gradient_sums, tile_products
from rlhf.compute import Compute, in_float32, outside_autocast, precision_at_hand
from rlhf.frozen import cast_frozen, freeze
from rlhf.lora import add_adapter
from rlhf.packing import packed_hidden, packed_positions
from rlhf.params.lora import LoraParams
from rlhf.recomputed_layers import recompute_layers
from rlhf.sft import Example, packed_response_loss, response_loss
from rlhf.sharding import Held
from tests.families import SIZES, policy
from tests.tiny import EOS, PAD, PROMPTS

CPU = torch.device("cpu")
LOWER = Compute(CPU, "bfloat16")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
PLAIN = nn.Linear.forward


@pytest.fixture(autouse=True)
def with_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that has them; no weight is too small."""
    monkeypatch.setattr(tile_products, "exist", lambda: True)
    monkeypatch.setattr(tile_products, "SMALLEST", 1)


class Seen(TorchDispatchMode):
    """How each product is made, by what torch asks oneDNN for while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := func._schema.name) in PRODUCTS or "attention" in name:
            self.made.append((name, torch.backends.mkldnn.matmul.fp32_precision))
        return func(*args, **(kwargs or {}))

    def of(self, *names: str) -> set[str]:
        return {how for name, how in self.made if name in names}


def how_now() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(lm, loss=response_loss, **arguments: Any) -> dict[str, torch.Tensor]:
    """Of two micro-batches of a step in bfloat16."""
    with Held(lm).step(LOWER):
        for examples in (EXAMPLES[:2], EXAMPLES[2:]):
            with LOWER.autocast():
                found = loss(lm, examples, tokens=10, **arguments)
            found.backward()
    return {name: weight.grad for name, weight in lm.named_parameters() if weight.grad is not None}


def expected(lm, loss=response_loss, **arguments: Any) -> dict[str, torch.Tensor]:
    """Those of autograd in float32."""
    loss(lm, EXAMPLES, tokens=10, **arguments).backward()
    return {name: weight.grad for name, weight in lm.named_parameters() if weight.grad is not None}


def require_close(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> None:
    """Up to 8 bits of the factors of each layer's products."""
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        assert found[name].dtype == torch.float32
        assert (found[name] - gradient).norm() <= 0.04 * gradient.norm(), name


@pytest.mark.parametrize("in_place", [True, False], ids=["added in place", "by autograd"])
def test_products_of_a_step_are_made_in_tiles_and_attention_is_not(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_sums, "SMALLEST", 1 if in_place else 2**30)
    lm = policy("llama")
    with Seen() as seen:
        found = gradients(lm, pad_id=PAD)
    layers = 2 * 7 + 1  # Seven of each layer, and the head.
    assert len([name for name, how in seen.made if how == "bf16"]) == 2 * 3 * layers
    assert {how for name, how in seen.made if "attention" in name} == {how_now()} == {"none"}
    require_close(found, expected(policy("llama"), pad_id=PAD))
    assert nn.Linear.forward is PLAIN
    assert not tile_products.are_on()


@pytest.mark.parametrize("in_place", [True, False], ids=["added in place", "by autograd"])
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "gpt_neox", "llama", "phi", "qwen2"])
def test_models_have_the_gradients_of_float32_up_to_rounding(
    family: str, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_sums, "SMALLEST", 1 if in_place else 2**30)
    require_close(gradients(policy(family), pad_id=PAD), expected(policy(family), pad_id=PAD))


@pytest.mark.parametrize("chunked", [True, False], ids=["logits in chunks", "layers"])
def test_what_is_computed_again_multiplies_as_it_did(
    chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = policy("llama")
    if chunked:
        monkeypatch.setattr("rlhf.token_chunks.MOST_LOGITS", 32)
    else:
        recompute_layers(lm)
    with LOWER.autocast():
        loss = response_loss(lm, EXAMPLES, pad_id=PAD, tokens=10)
    with Seen() as seen:
        loss.backward()
    assert seen.of("aten::mm", "aten::addmm") == {"bf16"}
    require_close(
        {name: weight.grad for name, weight in lm.named_parameters()},
        expected(policy("llama"), pad_id=PAD),
    )


def test_packed_rows_get_lengths_that_come_again(assert_close) -> None:
    """A sequence of padding behind the others changes none of them, nor any gradient."""
    lm = policy("llama")
    lengths = [len(prompt) for prompt in PROMPTS]
    ids = torch.tensor([[token for prompt in PROMPTS for token in prompt]])
    positions = packed_positions([lengths])
    alone = packed_hidden(lm.base_model, ids, positions)
    widths = set[int]()
    layer = lm.base_model.layers[0].mlp.up_proj
    layer.register_forward_pre_hook(lambda _, given: widths.add(given[0].shape[1]))
    with LOWER.autocast():
        found = packed_hidden(lm.base_model, ids, positions)
    assert widths == {tile_products.ROWS_STEP}
    assert found.shape == alone.shape == (1, 16, 32)
    assert (found - alone).norm() <= 0.02 * alone.norm()
    packed = {"loss": packed_response_loss, "width": 64}
    require_close(gradients(policy("llama"), **packed), expected(policy("llama"), **packed))


@pytest.mark.parametrize("family", ["gpt_neo", "opt"])
def test_packed_rows_get_no_more_tokens_than_there_are_positions(family: str) -> None:
    """GPT-Neo reads no longer row, OPT no longer sequence."""
    lengths, most = [14, 13, 13], 40 if family == "gpt_neo" else 16
    sizes = SIZES | {"max_position_embeddings": most}
    own = {"gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "opt": {"ffn_dim": 48}}
    config = AutoConfig.for_model(family, **sizes | own[family])
    trunk = AutoModelForCausalLM.from_config(config).eval().base_model
    ids = torch.tensor([[3 + place % 11 for place in range(sum(lengths))]])
    positions = packed_positions([lengths])
    alone = packed_hidden(trunk, ids, positions)
    with LOWER.autocast():
        found = packed_hidden(trunk, ids, positions)
    assert found.shape == alone.shape
    assert (found - alone).norm() <= 0.02 * alone.norm()


def test_a_layer_that_is_not_trained_keeps_no_activations() -> None:
    """As in autograd: below an adapter they would be most of what a step keeps."""
    layer, kept = nn.Linear(10, 9).requires_grad_(False), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x = drawn(2, 10).requires_grad_()
    with LOWER.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        y = layer(x)
    assert [tensor.shape for tensor in kept] == [layer.weight.shape]
    (found,) = torch.autograd.grad(y.sum(), x)
    assert (found - layer.weight.sum(dim=0)).norm() <= 0.01 * found.norm()
    kept.clear()
    with LOWER.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        layer.requires_grad_()(x.detach())
    assert [tensor.shape for tensor in kept] == [x.shape]


def test_which_tensors_are_cast() -> None:
    """None: weights that are not trained stay float32, so that they multiply like the others."""
    assert (LOWER.in_tiles, LOWER.casts) == (True, False)
    assert not Compute(CPU, "float32").in_tiles
    on_a_gpu = Compute(torch.device("cuda"), "bfloat16")
    assert (on_a_gpu.in_tiles, on_a_gpu.casts) == (False, True)
    frozen, adapted = freeze(policy("llama"), LOWER), policy("llama")
    add_adapter(adapted, LoraParams(rank=2), torch.Generator().manual_seed(0))
    cast_frozen(adapted, LOWER)
    for lm in (frozen, adapted):
        assert {weight.dtype for weight in lm.parameters()} == {torch.float32}
    with LOWER.autocast():
        assert precision_at_hand(CPU) == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        assert frozen(torch.tensor([[3, 4]])).logits.dtype == torch.float32
    assert precision_at_hand(CPU) == torch.float32


def test_layers_of_little_weight_and_of_other_types_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tile_products, "SMALLEST", 100)
    small, large = nn.Linear(9, 11), nn.Linear(10, 10)
    lower = nn.Linear(10, 10).bfloat16()
    with tile_products.tile_products(), Seen() as seen:
        small(drawn(2, 9))
        lower(drawn(2, 10).bfloat16())
    assert seen.of(*PRODUCTS) == {"none"}
    with tile_products.tile_products(), Seen() as seen:
        large(drawn(2, 10))
    assert seen.of(*PRODUCTS) == {"bf16"}


def test_scores_and_values_have_float32_factors() -> None:
    """So have heads of encoders, whose layers are large; logits have those of the trunk."""
    layer, x = nn.Linear(10, 10), drawn(2, 10)
    with LOWER.autocast(), Seen() as seen:
        with in_float32(CPU):
            assert precision_at_hand(CPU) == torch.float32
            layer(x)
        with outside_autocast(CPU):
            layer(x)
        layer(x)
    assert [how for _, how in seen.made] == ["none", "bf16", "bf16"]
    assert nn.Linear.forward is PLAIN


def test_an_error_leaves_everything_as_it_was() -> None:
    with contextlib.suppress(KeyError), LOWER.autocast(), LOWER.autocast():
        raise KeyError
    with contextlib.suppress(RuntimeError), LOWER.autocast():
        nn.Linear(3, 4)(drawn(2, 5))
    assert nn.Linear.forward is PLAIN
    assert not tile_products.are_on()
    assert how_now() == "none"


ASKED = """
from rlhf import bits
bits.choose("native")
import torch
from rlhf import tile_products
from rlhf.compute import make_deterministic
make_deterministic(2)
if not tile_products.exist():
    raise SystemExit("no tiles here")
draw = torch.Generator().manual_seed(0)
x, w, g = (torch.randn(*shape, generator=draw) for shape in ((70, 300), (500, 300), (70, 500)))
w.requires_grad_(), x.requires_grad_()
found = {}
for threads in (1, 2):
    torch.set_num_threads(threads)
    w.grad = x.grad = None
    y = tile_products.linear(x, w, None)
    y.backward(g)
    found[threads] = y.detach(), w.grad.clone(), x.grad.clone()
assert all(map(torch.equal, found[1], found[2])), "threads"
a, b, c = (each.detach().bfloat16().double() for each in (x, w, g))
for name, one, exact in zip("ywx", found[1], (a @ b.T, c.T @ a, c @ b)):
    gap = (one.double() - exact).norm() / exact.norm()
    assert gap < 1e-6, (name, gap)
whole = x.detach().double() @ w.detach().double().T
assert (y.detach().double() - whole).norm() / whole.norm() > 1e-4, "not rounded"

from rlhf.packed_weights import packed_weights
from tests.families import SIZES, policy
tile_products.SMALLEST = 1
lm = policy("qwen2")  # Its query, key and value have biases.
prompt = torch.tensor([[8, 9, 10, 11, 12]])
with torch.no_grad():
    for name, weight in lm.named_parameters():
        if name.endswith("bias"):
            weight.normal_(generator=draw)
    plain = lm(prompt).logits
    with tile_products.tile_products(), packed_weights(lm):
        inside = [name for name, part in lm.named_modules() if "forward" in vars(part)]
        logits = lm(prompt).logits
assert len(inside) == 2 * 7 and "lm_head" not in inside, inside
gap = (logits - plain).norm() / plain.norm()
assert 1e-5 < gap < 0.03, gap
assert not logits.equal(logits.bfloat16().float()), "rounded logits"
"""


@pytest.mark.long
def test_digits_are_those_of_rounded_factors_added_in_float32() -> None:
    """To float32's last digits they are products of factors of 8 bits, with one thread or two.

    While responses are sampled results are rounded as well, but for logits.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, check=False
    )
    if "no tiles here" in done.stderr:
        pytest.skip("a processor without tiles")
    assert done.returncode == 0, done.stderr
