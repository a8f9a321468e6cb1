"""Layers computed again in the backward pass: less is kept, and no gradient changes."""

import pytest
import torch

from rlhf.attention_masks import TAKE_ANY_MASK
from rlhf.lora import add_adapter
from rlhf.params.lora import LoraParams
from rlhf.recomputed_layers import recomputable, recompute_layers
from rlhf.sft import Example, packed_response_loss, response_loss
from tests.families import EVERY, policy
from tests.ppo_world import assert_same_weights, fresh, params, run
from tests.tiny import EOS, PAD, PROMPTS, gpt2

ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
EXAMPLES = [Example(prompt, answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]


def loss_of(lm) -> torch.Tensor:
    return response_loss(lm, EXAMPLES, tokens=10, pad_id=PAD)


def gradients(lm, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    return {name: w.grad for name, w in lm.named_parameters() if w.grad is not None}


def kept(lm) -> int:
    """Numbers that the loss keeps for its backward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(lm)
    del loss
    return sum(sizes.values())


@pytest.mark.parametrize("family", EVERY)
def test_every_family_has_the_same_gradients_to_the_bit(family):
    """Also where only some positions of the last layer are computed (rlhf.last_block)."""
    plain, recomputed = policy(family), policy(family)
    recompute_layers(recomputed)
    assert len(recomputable(plain)) == 1, "two layers, without the last"
    expected, found = (gradients(lm, loss_of(lm)) for lm in (plain, recomputed))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


@pytest.mark.parametrize("family", EVERY)
def test_every_family_keeps_less_for_the_backward_pass(family):
    plain, recomputed = policy(family), policy(family)
    recompute_layers(recomputed)
    assert kept(recomputed) < 0.9 * kept(plain)


@pytest.mark.parametrize("family", sorted(TAKE_ANY_MASK))
def test_packed_rows_have_the_same_gradients(family):
    """In one row each sequence attends by itself in the repetition, too (but Mistral's here)."""
    plain, recomputed = policy(family), policy(family)
    recompute_layers(recomputed)
    expected, found = (
        gradients(lm, packed_response_loss(lm, EXAMPLES, tokens=10, width=12))
        for lm in (plain, recomputed)
    )
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_a_graph_that_is_kept_is_gone_through_again():
    lm = policy("llama")
    recompute_layers(lm)
    loss = packed_response_loss(lm, EXAMPLES, tokens=10, width=12)
    loss.backward(retain_graph=True)
    once = {name: weight.grad.clone() for name, weight in lm.named_parameters()}
    loss.backward()
    for name, weight in lm.named_parameters():
        assert torch.equal(weight.grad, 2 * once[name]), name


def test_adapters_have_the_same_gradients():
    """Nothing before the first adapter needs a gradient."""
    plain, recomputed = policy("llama"), policy("llama")
    for lm in (plain, recomputed):
        add_adapter(lm, LoraParams(rank=2), torch.Generator().manual_seed(0))
    recompute_layers(recomputed)
    expected, found = (gradients(lm, loss_of(lm)) for lm in (plain, recomputed))
    assert expected
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_ppo_trains_to_the_same_weights(value_model):
    settings = params(value_model=value_model)
    plain, recomputed = fresh(settings), fresh(settings)
    recompute_layers(recomputed.models.actor)
    trunks = {"shared": 1, "separate": 2}[value_model]
    assert len(recomputable(recomputed.models.actor)) == trunks
    for training in (plain, recomputed):
        run(training, settings)
    assert_same_weights(recomputed.models.actor, plain.models.actor)


def test_dropout_stays_off():
    """In training mode, where `transformers` would recompute, every pass would draw another one."""
    lm = gpt2(dropout=0.5)
    recompute_layers(lm)
    assert torch.equal(loss_of(lm), loss_of(lm))
    assert not any(module.training for module in lm.modules())


def test_without_gradients_nothing_is_kept_or_run_twice():
    lm, runs = policy("llama"), []
    recompute_layers(lm)
    lm.model.layers[0].self_attn.register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        loss_of(lm)
    assert len(runs) == 1
    loss_of(lm).backward()
    assert len(runs) == 3
