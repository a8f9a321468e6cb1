"""Frozen models in bfloat16: the bits of autocast, half the memory, and nothing else touched."""

import copy

import pytest
import torch

from rlhf.compute import Compute
from rlhf.decoding_cache import decoding_cache
from rlhf.frozen import cast_frozen, freeze, load_frozen_policy, restore_frozen
from rlhf.generation import next_logits
from rlhf.logits import response_logits
from rlhf.lora import adapter_weights, add_adapter, take_adapter
from rlhf.padding import pad_left, pad_right
from rlhf.params.lora import LoraParams
from tests import tiny
from tests.families import EVERY, policy
from tests.tiny import COMPUTE, PROMPTS

BFLOAT16 = Compute(torch.device("cpu"), "bfloat16")
ANSWERS = [[3, 4], [5, 6, 7, 1], [8], [9, 10, 1]]
BATCH = (*pad_left(PROMPTS, 0), *pad_right(ANSWERS, 0))
WHOLE = ("falcon", "falcon with ALiBi")
"""Families whose every layer is of a kind of its own."""


def decoded(lm) -> torch.Tensor:
    """Logits of a prompt's next token, and of the one after it by the cache."""
    ids, mask = BATCH[:2]
    cache = decoding_cache(lm, ids.shape[1] + 1)
    first = next_logits(lm, ids, mask, cache)
    seen = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return torch.stack([first, next_logits(lm, torch.full((len(ids), 1), 5), seen, cache)])


@pytest.mark.parametrize("family", EVERY)
@torch.no_grad()
def test_a_frozen_policy_gives_the_bits_of_casting_at_every_forward_pass(family):
    plain = policy(family)
    frozen = freeze(copy.deepcopy(plain), BFLOAT16)
    with BFLOAT16.autocast():
        assert torch.equal(response_logits(frozen, *BATCH), response_logits(plain, *BATCH))
        assert torch.equal(decoded(frozen), decoded(plain))
    kinds = {weight.dtype for weight in frozen.parameters()}
    assert kinds == {torch.float32} | (set() if family in WHOLE else {torch.bfloat16})


@pytest.mark.parametrize("build", [tiny.reward_model, tiny.gpt2_reward_model])
@torch.no_grad()
def test_a_frozen_reward_model_gives_the_bits_of_casting_at_every_forward_pass(build):
    plain = build()
    frozen = freeze(copy.deepcopy(plain), BFLOAT16)
    with BFLOAT16.autocast():
        assert torch.equal(frozen(*BATCH[:2]), plain(*BATCH[:2]))


def test_only_the_linear_layers_below_the_head_are_cast():
    lm = freeze(tiny.llama(), BFLOAT16)
    wide = {name for name, weight in lm.named_parameters() if weight.dtype == torch.float32}
    norms = {name for name, _ in lm.named_parameters() if "norm" in name}
    assert wide == {"model.embed_tokens.weight"} | norms
    assert lm.lm_head.weight is lm.model.embed_tokens.weight
    # torch multiplies otherwise by a weight that needs no gradient: the head is to stay as it is.
    assert {name for name, weight in lm.named_parameters() if weight.requires_grad} == wide
    # Per block: 4 matrices of 32 x 32, 3 of 32 x 64, in 2 bytes instead of 4.
    halved = 2 * (4 * 32 * 32 + 3 * 32 * 64)
    size = sum(weight.nbytes for weight in lm.parameters())
    assert size == sum(weight.nbytes for weight in tiny.llama().parameters()) - 2 * halved


def test_in_float32_no_weight_changes(tmp_path):
    lm = tiny.llama()
    lm.save_pretrained(tmp_path)
    for name, weight in load_frozen_policy(tmp_path, COMPUTE).state_dict().items():
        assert torch.equal(weight, lm.state_dict()[name]), name
        assert weight.dtype == torch.float32
    assert all(
        weight.requires_grad for weight in load_frozen_policy(tmp_path, COMPUTE).parameters()
    )


def test_what_is_trained_stays_float32():
    lm = tiny.llama()
    cast_frozen(lm, BFLOAT16)
    assert {weight.dtype for weight in lm.parameters()} == {torch.float32}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_adapter_is_merged_into_the_digits_that_its_base_had(family):
    plain, trained = policy(family), policy(family)
    settings = LoraParams(rank=2, alpha=4, targets=[])
    for lm in (plain, trained):
        add_adapter(lm, settings, torch.Generator().manual_seed(1))
        for name, weight in adapter_weights(lm).items():
            if "lora_B" in name:
                weight.data.normal_(0, 1e-3, generator=torch.Generator().manual_seed(2))
    with BFLOAT16.autocast():
        before = response_logits(trained, *BATCH)
        cast_frozen(trained, BFLOAT16)
        assert torch.equal(response_logits(trained, *BATCH), before)
    dtypes = {weight.dtype for weight in trained.parameters() if not weight.requires_grad}
    assert dtypes == {torch.float32, torch.bfloat16}
    assert {weight.dtype for weight in adapter_weights(trained).values()} == {torch.float32}
    restore_frozen(trained, lambda: policy(family))
    adapters = [take_adapter(lm) for lm in (trained, plain)]
    for name, weight in plain.state_dict().items():
        assert torch.equal(trained.state_dict()[name], weight), name
    for name, weight in adapters[1].weights.items():
        assert torch.equal(adapters[0].weights[name], weight), name
