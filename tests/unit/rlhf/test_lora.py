"""What a low-rank adapter adds to a model, to which of its layers, and what it leaves alone."""

import pytest
import torch

from rlhf.lora import adapter_off, adapter_weights, add_adapter, has_adapter, take_adapter
from rlhf.model_folders import ModelFolderError
from rlhf.optimisers import Optimiser
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from tests import tiny
from tests.families import model_of, policy
from tests.unit.rlhf.adapted_models import BOTH, IDS, LORA, adapted, generator


@BOTH
@torch.no_grad()
def test_s38_with_the_adapter_off_the_logits_are_those_of_the_base_to_the_bit(build):
    model = adapted(build)
    expected, with_adapter = build()(IDS).logits, model(IDS).logits
    with adapter_off(model):
        assert torch.equal(model(IDS).logits, expected)
    assert torch.equal(model(IDS).logits, with_adapter)
    assert (with_adapter - expected).abs().max() > 0.1


@BOTH
@torch.no_grad()
def test_s38_a_fresh_adapter_changes_nothing(build):
    model = build()
    add_adapter(model, LORA, generator())
    assert torch.equal(model(IDS).logits, build()(IDS).logits)


@BOTH
@torch.no_grad()
def test_s38_the_adapter_adds_alpha_over_rank_times_b_a(assert_close, build):
    """The formula, put into a plain model by hand; GPT-2 keeps its matrices transposed."""
    model, plain = adapted(build), build()
    weights = adapter_weights(model)
    for name, a in weights.items():
        if "lora_A" in name:
            product = 8 / 4 * weights[name.replace("lora_A", "lora_B")] @ a
            target = plain.get_submodule(name.partition(".lora_")[0])
            target.weight += product.T if build is tiny.gpt2 else product
    assert_close(model(IDS).logits, plain(IDS).logits, rtol=1e-4, atol=1e-4)


def test_s57_the_same_generator_gives_the_same_adapter_whatever_the_global_one():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(found))
        model = tiny.llama()
        add_adapter(model, LORA, generator(seed))
        found.append(torch.cat([w.flatten() for w in adapter_weights(model).values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_fresh_adapter_is_drawn_as_linear_layers_are_uniform_by_their_inputs():
    """Within 1 / sqrt(inputs), and eight draws in ten within 0.8 of that."""
    model = tiny.llama()
    add_adapter(model, LoraParams(rank=8, alpha=8), generator(0))
    down = [weight for name, weight in adapter_weights(model).items() if "lora_A" in name]
    assert len({weight.shape[1] for weight in down}) > 1
    for weight in down:
        shares = weight.abs() * weight.shape[1] ** 0.5
        assert 0.9 < shares.max() <= 1
        assert abs(shares.lt(0.8).float().mean() - 0.8) < 0.15


def test_s38_every_linear_layer_of_the_trunk_has_one_and_no_head_or_embedding():
    names = {name.split(".")[-4] for name in adapter_weights(adapted())}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    model = tiny.llama()
    add_adapter(model, LoraParams(rank=2, targets=["q_proj"]), generator())
    assert {name.split(".")[-4] for name in adapter_weights(model)} == {"q_proj"}
    scorer = tiny.reward_model()
    add_adapter(scorer.classifier, LORA, generator(), head=scorer.head)
    assert not [name for name in adapter_weights(scorer) if "score" in name]


def test_the_router_of_experts_has_no_adapter():
    """Phi-3.5-MoE's is a linear layer whose result is a tuple, which no adapter can be added to."""
    model = model_of("phimoe", num_local_experts=2, num_experts_per_tok=1)
    before = model(input_ids=IDS).logits
    with pytest.raises(ModelFolderError, match=r"mlp\.router chooses experts"):
        add_adapter(model, LoraParams(rank=2, targets=["q_proj", "router"]), generator())

    add_adapter(model, LORA, generator())

    assert {name.split(".")[-4] for name in adapter_weights(model)} == {
        "q_proj", "k_proj", "v_proj", "o_proj",
    }  # fmt: skip
    assert torch.equal(model(input_ids=IDS).logits, before)


def test_targets_that_the_model_does_not_have_are_refused():
    words = r"lora.targets: no layer is named nope; expected some of .*k_proj, o_proj, q_proj"
    for targets in (["nope"], ["q_proj", "nope"]):
        with pytest.raises(ModelFolderError, match=words):
            add_adapter(tiny.llama(), LoraParams(targets=targets), generator())


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_a_weight_that_two_layers_share_gets_no_adapter(target):
    """Merged, it would change both of them: another model than the one that was trained."""
    words = {"lm_head": "shares its weight .*embed_tokens", "embed_tokens": "is an embedding"}
    model = tiny.llama()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with pytest.raises(ModelFolderError, match=words[target]):
        add_adapter(model, LoraParams(targets=["q_proj", target]), generator())
    assert not has_adapter(model)


def test_a_reward_models_head_gets_no_adapter():
    """It is new and trained whole; with an adapter on it no later stage would know it."""
    model = tiny.reward_model()
    words = "^lora.targets: score is the new head, which is trained whole; leave it out$"
    with pytest.raises(ModelFolderError, match=words):
        add_adapter(
            model.classifier, LoraParams(targets=["q_proj", "score"]), generator(), head=model.head
        )
    assert not has_adapter(model.classifier)


def test_a_part_that_is_no_layer_is_refused_in_one_line():
    with pytest.raises(ModelFolderError) as error:
        add_adapter(tiny.llama(), LoraParams(targets=["mlp"]), generator())
    assert str(error.value).startswith("lora.targets ['mlp']: ")
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_a_head_with_a_weight_of_its_own_is_published_as_it_was_trained(assert_close):
    model = policy("qwen3")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    add_adapter(model, LoraParams(rank=2, targets=["q_proj", "lm_head"]), generator())
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            weight.normal_(generator=generator())
    expected = model(IDS).logits
    take_adapter(model)
    assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_s38_only_the_adapter_is_in_the_optimiser(name):
    model = adapted()
    optimiser = Optimiser(OptimiserParams(name=name), model.named_parameters())
    assert {id(w) for w in optimiser.weights} == {id(w) for w in adapter_weights(model).values()}
    states = optimiser.state_dict()
    assert list(states) == ["0"], "adapters never go to Muon"
