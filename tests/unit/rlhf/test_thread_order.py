"""Whatever the number of threads, the same bytes: single operations and whole training steps."""

import hashlib
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rlhf import thread_order
from rlhf.language_model_loss import language_model_loss
from rlhf.logits import language_model_head, sequence_hidden
from rlhf.logprobs import token_logprobs_and_entropy
from rlhf.masked import masked_mean, masked_variance, whiten
from rlhf.optimisers import Optimiser, read_step
from rlhf.params.optimiser import OptimiserParams
from rlhf.ppo_losses import policy_loss
from rlhf.thread_order import EVEN_SHARES, ordered_sum

THREADS = (1, 2, 3, 4, 8)


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    """Every other test runs with one thread."""
    yield
    torch.set_num_threads(1)


def per_threads(compute: Callable[[], torch.Tensor]) -> dict[int, str]:
    """The hash of a result for each number of threads."""
    found = {}
    for threads in THREADS:
        torch.set_num_threads(threads)
        found[threads] = hashlib.sha256(compute().detach().numpy().tobytes()).hexdigest()[:10]
    return found


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    """Between -3 and 3."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * 6 - 3


ODD = 16 * 40_961 - 5
"""Elements of which no number of threads makes equal shares of whole vectors."""

X, Y, ROWS = uniform(ODD), uniform(ODD, seed=1), uniform(2999, 1001)


def layer_norm_gradients() -> torch.Tensor:
    x, weight, bias = ROWS.clone(), torch.ones(1001), torch.zeros(1001)
    leaves = [leaf.requires_grad_() for leaf in (x, weight, bias)]
    (F.layer_norm(x, (1001,), weight, bias) * ROWS.sin()).sum(1).sum().backward()
    return torch.cat([leaf.grad.flatten() for leaf in leaves if leaf.grad is not None])


OPERATIONS: dict[str, Callable[[], torch.Tensor]] = {
    "silu": lambda: F.silu(X),
    "silu_backward": lambda: torch.ops.aten.silu_backward(Y, X),
    "silu_backward_in_place": lambda: thread_order.silu_backward_(Y.clone(), X),
    "sigmoid": lambda: X.sigmoid(),
    "gelu": lambda: F.gelu(X),
    "gelu_backward": lambda: torch.ops.aten.gelu_backward(Y, X),
    "gelu_tanh": lambda: F.gelu(X, approximate="tanh"),
    "gelu_tanh_backward": lambda: torch.ops.aten.gelu_backward(Y, X, approximate="tanh"),
    "softplus": lambda: F.softplus(X),
    "softplus_backward": lambda: torch.ops.aten.softplus_backward(Y, X, 1.0, 20.0),
    "softmax_backward": lambda: torch.ops.aten._softmax_backward_data(
        ROWS, ROWS.softmax(-1), -1, torch.float32
    ),
    "layer_norm_backward": layer_norm_gradients,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_same_bytes_with_any_number_of_threads(name: str) -> None:
    thread_order.install()

    found = per_threads(OPERATIONS[name])

    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("rows", [7, 2999], ids=["small", "large"])
def test_columns_of_a_larger_matrix_give_the_bytes_of_their_copy(rows: int) -> None:
    """A kernel would compute the last few of each of their rows one by one."""
    thread_order.install()
    wide = uniform(rows, 1010)
    columns, others = wide[:, :1001], wide[:, 9:]
    for gradient, x in [(columns, columns), (columns, others.contiguous())]:
        for operation in (lambda _, x: F.silu(x), torch.ops.aten.silu_backward):
            found = operation(gradient, x)
            assert torch.equal(found, operation(gradient.contiguous(), x.contiguous()))


@pytest.mark.parametrize(
    "compute",
    [
        lambda: ordered_sum(X),
        lambda: masked_mean(X, X > 0),
        lambda: masked_variance(X[None], X[None] > 0),
        lambda: whiten(X[: 64 * 1000].view(64, 1000), Y[: 64 * 1000].view(64, 1000) > 0),
    ],
)
def test_a_sum_over_a_whole_tensor_gives_the_same_bytes_with_any_number_of_threads(
    compute: Callable[[], torch.Tensor],
) -> None:
    found = per_threads(compute)

    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("size", [0, 1, 100, 16_384, 16_385, 100_003, 5_000_000])
def test_an_ordered_sum_is_the_sum(size: int) -> None:
    values = uniform(size, seed=2)

    exact = math.fsum(values.tolist())
    assert abs(float(ordered_sum(values)) - exact) < 1e-6 * max(1.0, float(values.abs().sum()))
    assert abs(float(ordered_sum(values, torch.float64)) - exact) < 1e-9 * max(1, size)


@pytest.mark.parametrize("size", [1, 17, 32_768, EVEN_SHARES * 2, EVEN_SHARES * 2 + 31, ODD])
def test_the_parts_of_a_kernel_are_as_torch_computes_them_with_one_thread(size: int) -> None:
    """`torch.ops.aten.silu.out` is torch's own; only the form that returns a tensor is replaced."""
    thread_order.install()
    torch.set_num_threads(1)
    x = uniform(size, seed=3)
    alone = torch.ops.aten.silu.out(x, out=torch.empty_like(x))
    torch.set_num_threads(2)

    assert torch.equal(F.silu(x), alone)
    assert torch.equal(F.silu(x.view(1, -1).expand(3, -1))[2], alone)
    assert F.silu(x.view(-1, 1).t()).shape == (1, size)


def test_the_gradients_written_out_are_those_of_the_definition() -> None:
    """Against finite differences in float64."""
    thread_order.install()
    x = uniform(5, 6).double().requires_grad_()
    weight = uniform(6, seed=4).double().requires_grad_()
    bias = uniform(6, seed=5).double().requires_grad_()

    assert torch.autograd.gradcheck(lambda *a: F.layer_norm(a[0], (6,), *a[1:]), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda a: F.layer_norm(a, (5, 6)), (x,))
    assert torch.autograd.gradcheck(lambda a: a.softmax(-1), (x,))
    assert torch.autograd.gradcheck(lambda a: a.softmax(0), (x,))
    for activation in (F.silu, F.softplus, torch.sigmoid, F.gelu):
        assert torch.autograd.gradcheck(activation, (x,))


def llama(vocabulary: int, hidden: int, layers: int, heads: int, mlp: int) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2(vocabulary: int, hidden: int, layers: int, heads: int) -> PreTrainedModel:
    config = GPT2Config(vocab_size=vocabulary, n_embd=hidden, n_layer=layers, n_head=heads)
    return GPT2LMHeadModel(config).eval()


def train_two_steps(
    build: Callable[[], PreTrainedModel],
    shapes: tuple[tuple[int, int], ...],
    optimiser: str,
    *,
    packing: bool = False,
) -> torch.Tensor:
    """All weights after a step on the next-token loss and one of PPO for each shape of a batch."""
    torch.manual_seed(0)
    model = build()

    def logits_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = sequence_hidden(model.base_model, ids, mask, packing=packing)
        return language_model_head(model, hidden[:, :-1])

    steps = Optimiser(
        OptimiserParams(name=optimiser, lr=1e-3),  # type: ignore[arg-type]
        model.named_parameters(),
    )
    for number, (batch, width) in enumerate(shapes):
        draws = torch.Generator().manual_seed(number)
        vocabulary = model.config.vocab_size
        ids = torch.randint(0, vocabulary, (batch, width), generator=draws)
        lengths = torch.randint(width // 2, width + 1, (batch, 1), generator=draws)
        mask = torch.arange(width)[None] < lengths
        labels, trained = ids[:, 1:], mask[:, 1:]
        language_model_loss(logits_of(ids, mask), labels, trained).backward()
        read_step([], 0, [steps])
        steps.apply(1.0)
        found = token_logprobs_and_entropy(logits_of(ids, mask), labels, temperature=0.7)
        advantages = whiten(uniform(batch, width - 1, seed=9), trained)
        old = found.logprobs.detach() * 1.01
        loss = policy_loss(found.logprobs, old, advantages, trained, clip_range=0.2).loss
        (loss - masked_mean(found.entropy, trained)).backward()
        read_step([], 0, [steps])
        steps.apply(1.0)
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize(
    "packing", [False, pytest.param(True, marks=pytest.mark.long)], ids=["padded", "packed"]
)
@pytest.mark.parametrize("optimiser", ["muon", pytest.param("adamw", marks=pytest.mark.slow)])
def test_training_steps_of_the_default_size_give_the_same_bytes(
    optimiser: str, packing: bool
) -> None:
    """The second batch is one that 5 threads share unevenly; of 8 threads, 5 work on it.

    Muon trains the embeddings by AdamW, so that it is a test of both.
    """
    thread_order.install()

    found = per_threads(
        lambda: train_two_steps(
            lambda: llama(1536, 128, 2, 4, 384),
            ((16, 192), (7, 58)),
            optimiser,
            packing=packing,
        )
    )

    assert len(set(found.values())) == 1, found


def test_training_steps_of_a_gpt_2_give_the_same_bytes() -> None:
    thread_order.install()

    found = per_threads(lambda: train_two_steps(lambda: gpt2(1536, 130, 2, 2), ((7, 58),), "adamw"))

    assert len(set(found.values())) == 1, found


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_training_steps_of_135_million_weights_give_the_same_bytes(
    optimiser: str, packing: bool
) -> None:
    """Two of the 30 layers of such a model."""
    thread_order.install()

    found = per_threads(
        lambda: train_two_steps(
            lambda: llama(49_152, 576, 2, 9, 1536),
            ((4, 131), (3, 29)),
            optimiser,
            packing=packing,
        )
    )

    assert len(set(found.values())) == 1, found
