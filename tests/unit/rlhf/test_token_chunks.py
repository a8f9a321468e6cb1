"""Logits in chunks of tokens: the same numbers and gradients, and never those of a whole batch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf import bits, token_chunks
from rlhf.dpo import PromptedPair, pair_logprobs
from rlhf.evaluation import kl_to_reference
from rlhf.logits import before_response, language_model_head, response_logits
from rlhf.logprobs import token_logprobs_and_entropy
from rlhf.padding import pad_left, pad_right
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.sampling import SamplingParams
from rlhf.sft import Example, response_loss
from rlhf.token_chunks import chunked_logprobs_and_entropy
from tests.families import EVERY, policy
from tests.ppo_world import fresh, metrics_of, params, run
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS, VOCABULARY, llama

ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7, 3, 3, 3], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
BATCH = (*pad_left(PROMPTS, PAD), *pad_right(ANSWERS, PAD))
WIDE = 2048
"""A vocabulary beside which everything else of the tiny world is small."""
LONG = [[2 + (7 * row + step) % 90 for step in range(24)] for row in range(16)]


@pytest.fixture(name="three_tokens")
def _three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of three tokens at most, of the tiny vocabulary."""
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 3 * VOCABULARY)


def gradient(lm, loss: torch.Tensor) -> torch.Tensor:
    """Of all weights, in one vector."""
    loss.backward()
    found = [weight.grad.flatten() for weight in lm.parameters() if weight.grad is not None]
    lm.zero_grad()
    return torch.cat(found)


def assert_same_gradient(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).norm().item() <= 1e-6 * expected.norm().item()


@pytest.mark.parametrize("family", EVERY)
def test_chunks_give_the_numbers_and_gradient_of_the_whole(assert_close, three_tokens, family):
    """By each family's own head, which may cap and scale; loss = any sum of both numbers."""
    lm = policy(family)
    weights = torch.randn(2, *BATCH[2].shape, generator=torch.Generator().manual_seed(3))

    plain = token_logprobs_and_entropy(response_logits(lm, *BATCH), BATCH[2], temperature=0.7)
    expected = gradient(lm, (weights * torch.stack(plain)).sum())

    hidden = before_response(lm.base_model, BATCH)
    found = chunked_logprobs_and_entropy(lm, hidden, BATCH[2], temperature=0.7)
    assert_close(found.logprobs, plain.logprobs, rtol=1e-6, atol=1e-6)
    assert_close(found.entropy, plain.entropy, rtol=1e-6, atol=1e-6)
    assert_same_gradient(gradient(lm, (weights * torch.stack(found)).sum()), expected)


def test_sft_in_chunks_has_the_loss_and_gradient_of_the_whole(
    assert_close, monkeypatch: pytest.MonkeyPatch
):
    lm = llama()
    whole = response_loss(lm, EXAMPLES, tokens=13, pad_id=PAD)
    expected = gradient(lm, whole)
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 3 * VOCABULARY)
    found = response_loss(lm, EXAMPLES, tokens=13, pad_id=PAD)
    assert_close(found, whole.detach(), rtol=1e-6, atol=0)
    assert_same_gradient(gradient(lm, found), expected)


@pytest.mark.parametrize("most", [3 * VOCABULARY, token_chunks.MOST_LOGITS], ids=["cut", "whole"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_gradients_by_hand_train_as_autograds(
    entropy_coef: float, most: int, assert_close, monkeypatch: pytest.MonkeyPatch
):
    """Native bits have them (`rlhf.picked_logprobs`): of SFT, of pairs, of PPO."""
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", most)
    pairs = [PromptedPair(PROMPTS[0], ANSWERS[0], ANSWERS[2]), PromptedPair(PROMPTS[1], [7], [8])]
    settings, found = params(iterations=1, entropy_coef=entropy_coef), {}
    for in_effect in ("portable", "native"):
        monkeypatch.setattr(bits, "_in_effect", in_effect)
        lm = llama()
        losses = (
            response_loss(lm, EXAMPLES, tokens=13, pad_id=PAD),
            pair_logprobs(lm, pairs, pad_id=PAD, compute=COMPUTE)[0].sum(),
        )
        gradients = [gradient(lm, loss) for loss in losses]
        found[in_effect] = *gradients, metrics_of(run(fresh(settings), settings))
    *ours, of_ours = found["native"]
    *theirs, of_theirs = found["portable"]
    for one, other in zip(ours, theirs, strict=True):
        assert other.norm() > 0
        assert_same_gradient(one, other)
    for name in ("kl", "entropy", "policy_loss", "grad_norm", "value_loss", "ratio"):
        for one, other in zip(of_ours, of_theirs, strict=True):
            assert_close(getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-6)


def test_exact_kl_in_chunks_is_that_of_the_whole(assert_close, monkeypatch: pytest.MonkeyPatch):
    lms, settings = (llama(0), llama(1)), EvaluateParams(sampling=SamplingParams(temperature=0.8))
    whole = kl_to_reference(*lms, PROMPTS, ANSWERS, settings, TOKENS, compute=COMPUTE)
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 3 * VOCABULARY)
    found = kl_to_reference(*lms, PROMPTS, ANSWERS, settings, TOKENS, compute=COMPUTE)
    assert min(whole) > 0.1
    assert_close(found, whole, rtol=1e-6, atol=1e-6)


def test_pairs_in_chunks_have_the_logprobs_of_the_whole(
    assert_close, monkeypatch: pytest.MonkeyPatch
):
    lm = llama()
    pairs = [PromptedPair(PROMPTS[0], ANSWERS[0], ANSWERS[2]), PromptedPair(PROMPTS[1], [7], [8])]
    whole = pair_logprobs(lm, pairs, pad_id=PAD, compute=COMPUTE)
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 3 * VOCABULARY)
    found = pair_logprobs(lm, pairs, pad_id=PAD, compute=COMPUTE)
    assert_close(torch.stack(found), torch.stack(whole).detach(), rtol=1e-6, atol=1e-6)


def test_ppo_in_chunks_trains_as_on_the_whole(assert_close, monkeypatch: pytest.MonkeyPatch):
    """Rollouts and updates both; the entropy is part of the loss."""
    settings = params(entropy_coef=0.1, iterations=1)
    whole = metrics_of(run(fresh(settings), settings))
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 3 * VOCABULARY)
    found = metrics_of(run(fresh(settings), settings))
    for name in ("kl", "entropy", "policy_loss", "grad_norm", "value_loss", "ratio"):
        one, other = (getattr(metrics[0], name) for metrics in (found, whole))
        assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_batch_within_the_bound_is_not_cut_or_computed_twice():
    lm, calls = llama(), []

    def read(hidden: torch.Tensor) -> torch.Tensor:
        calls.append(hidden.shape)
        return language_model_head(lm, hidden).sum()

    hidden = torch.randn(2, 3, 32, requires_grad=True)
    (result,) = token_chunks.each_chunk(lm, read, hidden)
    result.backward()
    assert calls == [(2, 3, 32)]


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation inside it made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max(self.numbers, *made, 0)
        return result


def update_ppo() -> None:
    settings = params(
        rollout_size=16, minibatches=1, micro_batch_size=16, iterations=1, epochs=1,
        sampling=SamplingParams(max_new_tokens=12),
    )  # fmt: skip
    training = fresh(settings, vocabulary=WIDE)
    run(training, settings, prompts=LONG)


def train_sft() -> None:
    examples = [Example(row[:8], row[8:]) for row in LONG]
    response_loss(llama(0, WIDE), examples, tokens=256, pad_id=PAD).backward()


def evaluate() -> None:
    responses = [row[:16] for row in LONG]
    lms = (llama(0, WIDE), llama(1, WIDE))
    kl_to_reference(*lms, LONG, responses, EvaluateParams(), TOKENS, compute=COMPUTE)


def train_dpo() -> None:
    pairs = [PromptedPair(row[:8], row[8:16], row[16:]) for row in LONG]
    found = pair_logprobs(llama(0, WIDE), pairs, pad_id=PAD, compute=COMPUTE)
    (found.chosen - found.rejected).sum().backward()


@pytest.mark.parametrize(
    ("work", "tokens"), [(update_ppo, 16 * 12), (train_sft, 256), (evaluate, 256), (train_dpo, 256)]
)
def test_no_tensor_holds_the_logits_of_a_batch(monkeypatch: pytest.MonkeyPatch, work, tokens):
    """With chunks none is larger than the embeddings; without them the logits are, and are there.

    What an answer ends early takes away is less than half of the tokens.
    """
    weights = WIDE * 32
    with Largest() as whole:
        work()
    assert tokens * WIDE / 2 < whole.numbers <= tokens * WIDE
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 20 * WIDE)
    with Largest() as chunked:
        work()
    assert chunked.numbers == weights


def test_no_logits_are_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch):
    lm, kept = llama(0, WIDE), []
    examples = [Example(row[:8], row[8:]) for row in LONG]

    def logits_kept() -> list[tuple[int, ...]]:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            response_loss(lm, examples, tokens=256, pad_id=PAD)
        return [shape for shape in kept if shape[-1:] == (WIDE,) and shape != (32, WIDE)]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    assert logits_kept()
    monkeypatch.setattr(token_chunks, "MOST_LOGITS", 20 * WIDE)
    assert logits_kept() == []
