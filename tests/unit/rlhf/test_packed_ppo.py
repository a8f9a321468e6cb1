"""PPO from packed rows: the numbers of padded ones, and no padding computed.

The padded path is compared with transformers' own pass over each sequence elsewhere
(test_rollouts.py), so here it is what packed rows have to agree with.
"""

import copy
from dataclasses import replace

import pytest
import torch

from rlhf.ensembles import RewardEnsemble
from rlhf.lora import add_adapter
from rlhf.params.lora import LoraParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import train
from rlhf.ppo_actor import build_actor
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from tests import packed_rows, tiny
from tests.ppo_world import PLAIN, assert_same_weights, fresh, metrics_of, params, policy, run
from tests.tiny import COMPUTE, PROMPTS, TOKENS

packed_as = pytest.fixture(params=packed_rows.KINDS)(packed_rows.packed_as)
LONG = [*PROMPTS, list(range(2, 16)) * 2]
RAGGED = SamplingParams(max_new_tokens=12)
ONE_UPDATE = {
    "iterations": 1,
    "rollout_size": 10,
    "epochs": 1,
    "minibatches": 1,
    "sampling": RAGGED,
    "optimiser": PLAIN,
    "value_optimiser": PLAIN,
}


def settings(packing: bool, **changes):
    return params(**{**ONE_UPDATE, "packing": packing, **changes})


def both(**changes) -> list[PPOTraining]:
    """A round from padded rows and the same from packed ones, with their results."""
    found = []
    for packing in (False, True):
        chosen = settings(packing, **changes)
        training = fresh(chosen, reference_seed=1)
        found.append((training, run(training, chosen, prompts=LONG)))
    return found


def assert_same_round(found, assert_close) -> None:
    """Gradients (the weights after one step), metrics and rollouts but for rounding."""
    (plain, expected), (packed, results) = found
    weights = plain.models.actor.state_dict()
    for name, weight in packed.models.actor.state_dict().items():
        assert_close(weight, weights[name], rtol=0, atol=2e-6)
    for one, other in zip(results, expected, strict=True):
        curves = other.metrics.curves()
        for name, value in one.metrics.curves().items():
            assert_close(value, curves[name], rtol=1e-4, atol=1e-5)
        mask = other.rollout.response_mask
        assert torch.equal(one.rollout.response_ids, other.rollout.response_ids)
        assert mask.sum(dim=1).unique().numel() > 2
        for name in ("logprobs", "ref_logprobs", "values"):
            numbers = getattr(one.rollout, name)
            assert_close(numbers[mask], getattr(other.rollout, name)[mask], rtol=0, atol=1e-5)
            assert not numbers[~mask].any() or name == "values"
        assert_close(one.rollout.scores, other.rollout.scores, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("packed_as")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"value_model": "shared"},
        {"micro_batch_size": 3},
        {"minibatches": 2, "optimiser": replace(PLAIN, lr=1e-3)},
        {"kl_in": "loss", "kl_estimator": "k2", "entropy_coef": 0.1, "value_huber_delta": 0.5},
        {"value_warmup_iterations": 1},
        pytest.param(
            {"value_warmup_iterations": 1, "value_model": "shared"}, marks=pytest.mark.long
        ),
        {"advantage": "rloo", "samples_per_prompt": 2},
    ],
    ids=lambda changes: " ".join(changes) or "plain",
)
def test_s52_packed_rows_change_no_number_of_a_rollout_and_no_gradient(assert_close, changes):
    assert_same_round(both(**changes), assert_close)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_s52_nor_with_an_adapter_whose_policy_is_its_own_reference(assert_close, value_model):
    found = []
    for packing in (False, True):
        chosen = settings(packing, value_model=value_model)
        actor = build_actor(policy(), chosen)
        draws = torch.Generator().manual_seed(2)
        add_adapter(actor.lm, LoraParams(rank=2, alpha=4), draws)
        for name, weight in actor.lm.named_parameters():
            if "lora_B" in name:  # Fresh ones are 0: policy and reference would be the same.
                weight.data.normal_(0, 0.3, generator=draws)
        scorer = tiny.reward_model()
        training = PPOTraining(PPOModels(actor, actor.lm, scorer), chosen)
        found.append((training, run(training, chosen, prompts=LONG)))
    assert found[1][1][0].metrics.kl != 0
    assert_same_round(found, assert_close)


def test_s52_nor_with_an_ensemble_of_reward_models(assert_close):
    found = []
    for packing in (False, True):
        chosen = settings(packing)
        scorer = RewardEnsemble([tiny.reward_model(7), tiny.reward_model(8)], k=1.0)
        models = PPOModels(build_actor(policy(), chosen), policy(1), scorer)
        training = PPOTraining(models, chosen)
        found.append((training, run(training, chosen, prompts=LONG)))
    assert_same_round(found, assert_close)


def computed(packing: bool) -> dict[str, list[int]]:
    """How many tokens each trunk reads in each pass, and how many rows its head does."""
    chosen = settings(packing, rollout_size=12, micro_batch_size=6)
    training = fresh(chosen, reference_seed=1)
    models, seen = training.models, {}

    def count(name):
        def hook(_, inputs):
            if torch.is_grad_enabled() or not name.startswith("policy"):  # Sampling has none.
                seen.setdefault(name, []).append(inputs[0].shape[:2].numel())

        return hook

    trunks = {
        "policy": models.actor.lm.base_model,
        "value": models.actor.value_trunk,
        "reference": models.reference.base_model,
        "scorer": models.reward_model.classifier.base_model,
    }
    for name, trunk in trunks.items():
        trunk.embed_tokens.register_forward_pre_hook(count(name))
    models.reference.lm_head.register_forward_pre_hook(count("reference's head"))
    models.actor.lm.lm_head.register_forward_pre_hook(count("policy's head"))
    (result,) = run(training, chosen, prompts=LONG)
    mask = result.rollout.response_mask
    seen["real"] = [int(mask.sum()), int(result.rollout.prompt_mask.sum() + mask.sum())]
    return seen


def test_s52_of_packed_rows_all_tokens_are_real():
    plain, packed = computed(False), computed(True)
    responses, tokens = packed.pop("real")
    for head in ("reference's head", "policy's head"):
        assert sum(packed.pop(head)) == responses < sum(plain[head])
    for name, counts in packed.items():
        passes = 2 if name == "value" else 1  # It is scored, and trained.
        assert passes * tokens == sum(counts)
        assert sum(plain[name]) > 1.35 * passes * tokens


@pytest.mark.parametrize(
    "value_model", ["shared", pytest.param("separate", marks=pytest.mark.long)]
)
def test_s55_a_packed_round_resumes_from_its_state_as_if_never_stopped(value_model):
    chosen = params(
        iterations=4, value_model=value_model, packing=True, sampling=RAGGED, micro_batch_size=3
    )
    whole, first, second = fresh(chosen), fresh(chosen), fresh(chosen, seed=5)
    expected = metrics_of(run(whole, chosen))
    found = metrics_of(run(first, chosen, stop=2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found += metrics_of(run(second, chosen))
    assert found == expected
    assert_same_weights(second.models.actor, whole.models.actor)


def test_s01_padding_that_is_the_end_token_changes_no_bit_of_packed_rows():
    chosen = params(iterations=2, packing=True, sampling=RAGGED)
    found = []
    for pad in (0, 1, 9):
        training = fresh(chosen)
        tokens = TOKENS._replace(pad=pad)
        steps = train(training, PROMPTS, chosen, tokens, compute=COMPUTE, seeds=Seeds(0))
        found.append((metrics_of(list(steps)), training.models.actor.state_dict()))
    for metrics, weights in found[1:]:
        assert metrics == found[0][0]
        assert all(torch.equal(weight, found[0][1][name]) for name, weight in weights.items())


@pytest.mark.parametrize(("value_model", "passes"), [("separate", 0), ("shared", 2)])
def test_s37_where_only_values_train_no_policy_head_runs(value_model, passes):
    """Nor the policy itself where values have their own trunk: two more minibatches show it."""
    counts = []
    for value_epochs in (1, 2):
        chosen = params(
            iterations=1,
            epochs=1,
            value_epochs=value_epochs,
            value_warmup_iterations=1,
            value_model=value_model,
        )
        training = fresh(chosen)
        lm, seen = training.models.actor.lm, {"trunk": 0, "head": 0}

        def note(seen, name):
            assert not torch.is_grad_enabled()
            seen[name] += 1

        lm.base_model.layers[0].register_forward_pre_hook(lambda *_, s=seen: note(s, "trunk"))
        lm.lm_head.register_forward_pre_hook(lambda *_, s=seen: note(s, "head"))
        (metrics,) = metrics_of(run(training, chosen))
        counts.append(seen)
        assert metrics.entropy is metrics.ratio is metrics.clip_fraction is None
        assert metrics.value_loss > 0
    one, two = counts
    assert two["trunk"] - one["trunk"] == passes
    assert two["head"] == one["head"] > 0
