"""The last block only where it is read: what is read, and every gradient, is the plain model's."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from rlhf.last_block import FAMILIES, computed_only_at, position_wise_parts
from rlhf.logits import sequence_hidden
from rlhf.lora import add_adapter
from rlhf.padding import position_ids
from rlhf.params.lora import LoraParams
from tests import tiny

MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]).bool()
READ = torch.tensor([[0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0]]).bool()
IDS = torch.randint(2, 16, MASK.shape, generator=torch.Generator().manual_seed(0))


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}


def trunk_of(family: str, *, key_value_heads: int = 2, **sizes: int) -> torch.nn.Module:
    """Three layers, random weights, four query heads."""
    config = AutoConfig.for_model(
        family,
        vocab_size=16,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        initializer_range=0.1,
        pad_token_id=0,
        **SIZES | sizes,
    )
    torch.manual_seed(3)
    return AutoModel.from_config(config).eval()


def plain_hidden(trunk):
    """The library's own forward pass, of which everything is computed."""
    output = trunk(
        input_ids=torch.where(MASK, IDS, 0),
        attention_mask=MASK.long(),
        position_ids=position_ids(MASK),
        use_cache=False,
    )
    return output.last_hidden_state


def gradients(trunk, hidden):
    weights = [weight for weight in trunk.parameters() if weight.requires_grad]
    return torch.autograd.grad(hidden[READ].sin().sum(), weights)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_is_read_and_its_gradients_are_those_of_the_whole_block(assert_close, family):
    trunk = trunk_of(family)
    assert len(position_wise_parts(trunk)) == 3
    expected = plain_hidden(trunk)
    found = sequence_hidden(trunk, IDS, MASK, read=READ)
    assert_close(found[READ], expected[READ], rtol=0, atol=1e-5)
    # It is another computation: elsewhere the last MLP is missing.
    assert (found - expected)[MASK & ~READ].abs().max() > 1e-3
    pairs = zip(gradients(trunk, found), gradients(trunk, expected), strict=True)
    for mine, theirs in pairs:
        assert_close(mine, theirs, rtol=0, atol=1e-4)


MANY = [torch.cat([tensor] * 7) for tensor in (IDS, MASK, READ)]
"""The same rows seven times: 49 positions to read of 147."""


@pytest.mark.parametrize(
    ("rows", "computed"), [((IDS, MASK, READ), [21, 32]), (tuple(MANY), [147, 49])]
)
@pytest.mark.parametrize("part", ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"])
def test_the_last_block_works_on_the_positions_read_and_no_others(part, rows, computed):
    trunk = tiny.llama().base_model
    found = []
    for layer in trunk.layers:
        layer.get_submodule(part).register_forward_hook(
            lambda _module, _inputs, output: found.append(output.shape[:-1].numel())
        )
    ids, mask, read = rows
    sequence_hidden(trunk, ids, mask, read=read)
    # A hook that was there before ours sees what ours has not widened yet; 32 rows at least.
    assert found == computed


def test_where_everything_is_read_nothing_is_copied_and_the_bits_are_the_plain_models():
    trunk = tiny.llama().base_model
    ids = torch.cat([IDS] * 2)
    everywhere, shapes = torch.ones_like(ids, dtype=torch.bool), []
    trunk.layers[-1].mlp.register_forward_hook(
        lambda _module, _inputs, output: shapes.append(output.shape[:-1])
    )
    found = sequence_hidden(trunk, ids, everywhere)
    positions = position_ids(everywhere)
    expected = trunk(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    assert shapes == [ids.shape] * 2
    assert torch.equal(found, expected)


def test_outside_the_context_the_model_is_whole_again():
    trunk = tiny.llama().base_model
    expected = plain_hidden(trunk)
    with pytest.raises(ZeroDivisionError), computed_only_at(trunk, READ):
        raise ZeroDivisionError
    assert torch.equal(plain_hidden(trunk), expected)


def test_a_family_that_is_not_known_computes_everything():
    trunk = tiny.gpt2().base_model
    assert torch.equal(sequence_hidden(trunk, IDS, MASK, read=READ), plain_hidden(trunk))


def test_an_adapter_in_the_last_block_gets_its_gradients(assert_close):
    lm = tiny.llama()
    add_adapter(lm, LoraParams(rank=2), torch.Generator().manual_seed(1))
    for name, weight in lm.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.01)
    trunk = lm.base_model
    found = gradients(trunk, sequence_hidden(trunk, IDS, MASK, read=READ))
    for mine, theirs in zip(found, gradients(trunk, plain_hidden(trunk)), strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert all(part.any() for part in found)


@pytest.mark.parametrize("threads", [2, 3, 4, 8])
def test_few_positions_give_the_same_bits_whatever_the_number_of_threads(threads):
    """A product of 2 to 31 rows by MKL would not; here 7 positions of 147 are read."""
    ids, mask, _ = MANY
    read = torch.zeros_like(mask)
    read[: len(READ)] = READ
    trunk = trunk_of("llama", key_value_heads=4, intermediate_size=399)
    before, results = torch.get_num_threads(), []
    weights = list(trunk.parameters())
    try:
        for number in (1, threads):
            torch.set_num_threads(number)
            hidden = sequence_hidden(trunk, ids, mask, read=read)
            found = torch.autograd.grad(hidden[read].sin().sum(), weights)
            results.append([hidden[read], *found])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
