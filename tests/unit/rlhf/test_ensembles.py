"""Ensembles of reward models: the score by hand, members that differ, the way to disk and back."""

import copy
import json
import statistics

import pytest
import torch

from rlhf.actor_critic import build_actor_critic
from rlhf.ensembles import (
    RewardEnsemble,
    join,
    load_members,
    load_scorer,
    save_members,
    starting_members,
)
from rlhf.model_folders import is_reward_model
from rlhf.optimisers import NonFiniteError, Optimiser, Training
from rlhf.padding import pad_right
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.reward import RewardParams
from rlhf.reward import (
    EncodedPair,
    EnsembleTraining,
    fit_normaliser,
    member_seeds,
    train,
    train_members,
)
from rlhf.seeding import Seeds
from rlhf.self_checks import fingerprint
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD

CPU = torch.device("cpu")
ROWS = pad_right([[5, 6, EOS], [7, 8, 9, EOS], [4, EOS]], PAD)
PAIRS = [
    EncodedPair([5, 6, 7, EOS], [5, 6, 8, 9, EOS], 0.0, 1.0),
    EncodedPair([4, EOS], [4, 10, 11, 12, 13, EOS], 0.5, 2.0),
    EncodedPair([9, 9, 3, 4, 5, EOS], [9, 9, 12, EOS], 1.0, 1.0),
]
PARAMS = RewardParams(epochs=2, batch_size=2, optimiser=OptimiserParams(warmup_steps=2))


def members(count: int = 3):
    """Reward models of different weights and normalisers."""
    models = [tiny.reward_model(seed) for seed in range(count)]
    for number, model in enumerate(models):
        model.set_normaliser(0.1 * number, 1.0 + number)
    return models


def saved(model, folder):
    model.classifier.save_pretrained(folder)
    save_members(model, folder)
    return folder


# --- the score -----------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("k", [0.0, 0.5, 2.0])
def test_the_score_is_the_mean_less_k_deviations_of_the_normalised_scores(assert_close, k):
    scores = [(model.raw_scores(*ROWS) - model.mean) / model.std for model in members()]
    mean = sum(scores) / 3
    deviation = (sum((score - mean) ** 2 for score in scores) / 3) ** 0.5
    assert deviation.min() > 1e-3
    assert_close(join(members(), k)(*ROWS), mean - k * deviation, rtol=0, atol=1e-6)


@torch.no_grad()
def test_members_that_agree_lose_nothing():
    model = tiny.reward_model()
    ensemble = join([model, copy.deepcopy(model)], 5.0)
    assert torch.equal(ensemble(*ROWS), model(*ROWS))


def test_one_member_is_the_plain_reward_model():
    model = tiny.reward_model()
    assert join([model], 5.0) is model


@torch.no_grad()
def test_s41_an_ensemble_is_invariant_to_padding(assert_close):
    ensemble = join(members(), 1.0)
    wide = [torch.nn.functional.pad(tensor, (3, 2)) for tensor in ROWS]
    assert_close(ensemble(*wide), ensemble(*ROWS), rtol=0, atol=1e-5)


@torch.no_grad()
def test_s37_a_value_function_starts_at_the_score_of_the_first_member(assert_close):
    ensemble = join(members(), 1.0)
    actor = build_actor_critic(tiny.llama(), reward_model=ensemble, separate=True)
    ids = torch.tensor([[5, 6, 7, EOS, 6]])
    mask = torch.ones_like(ids).bool()
    values = actor(ids[:, :2], mask[:, :2], ids[:, 2:], mask[:, 2:]).values
    assert_close(values[0, -1], members()[0](ids[:, :4], mask[:, :4])[0], rtol=0, atol=1e-5)


def test_no_member_names_the_version_of_the_library_that_wrote_it(tmp_path):
    save_members(join(members(), 1.0), tmp_path)
    configs = sorted(tmp_path.glob("*/*config.json"))
    assert {path.parent.name for path in configs} == {"member_2", "member_3"}
    assert not [path for path in configs if "transformers_version" in path.read_text()]


# --- training ------------------------------------------------------------------------------------


def fresh(count: int) -> EnsembleTraining:
    models = [tiny.reward_model() for _ in range(count)]
    return EnsembleTraining(
        [Training(m, Optimiser(PARAMS.optimiser, m.named_parameters())) for m in models]
    )


def run(training: EnsembleTraining, *, stop: int | None = None):
    result = []
    steps = train_members(training, PAIRS, PARAMS, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0))
    for step in steps:
        result.append(step)
        if training.step == stop:
            break
    return result


def test_s57_the_first_member_is_what_it_is_without_an_ensemble():
    alone = Training(
        model := tiny.reward_model(), Optimiser(PARAMS.optimiser, model.named_parameters())
    )
    expected = list(train(alone, PAIRS, PARAMS, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)))
    training = fresh(3)
    found = run(training)
    assert [step for number, step in found if number == 0] == expected
    assert fingerprint(training.members[0].model) == fingerprint(alone.model)


def test_members_see_the_pairs_in_an_order_of_their_own():
    """From one model, so that the order alone makes the difference."""
    training = fresh(3)
    run(training)
    assert len({fingerprint(member.model) for member in training.members}) == 3


def test_members_have_heads_of_their_own(tmp_path):
    tiny.llama().save_pretrained(tmp_path)
    heads = [member_seeds(Seeds(0), number).torch("reward", "head") for number in range(3)]
    found = starting_members(tmp_path, tmp_path, heads, CPU)
    assert len({tuple(member.head.weight.flatten().tolist()) for member in found}) == 3
    assert len({fingerprint(member.classifier.base_model) for member in found}) == 1


def test_an_ensemble_that_grows_takes_further_members_from_sft(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "sft")
    start = saved(join(members(2), 1.0), tmp_path / "reward")
    heads = [torch.Generator() for _ in range(3)]
    found = starting_members(start, tmp_path / "sft", heads, CPU)
    assert [fingerprint(m) for m in found[:2]] == [fingerprint(m) for m in members(2)]
    assert fingerprint(found[2].classifier.base_model) == fingerprint(tiny.llama().base_model)
    assert len(starting_members(start, tmp_path / "sft", heads[:1], CPU)) == 1


@pytest.mark.parametrize("stop", [1, 4, 5])
def test_s55_an_ensemble_resumes_from_its_state_as_if_never_stopped(stop):
    """Within the first member, at its end, and within the second."""
    whole, first, second = fresh(2), fresh(2), fresh(2)
    expected = run(whole)
    found = run(first, stop=stop)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found += run(second)
    assert found == expected
    for one, other in zip(whole.members, second.members, strict=True):
        assert fingerprint(one.model) == fingerprint(other.model)


def test_s34_a_member_whose_weights_are_lost_is_noticed():
    training = fresh(2)
    training.require_finite_weights()
    training.members[1].model.head.weight.data[0, 0] = float("nan")
    with pytest.raises(NonFiniteError):
        training.require_finite_weights()


# --- the scale of the joint score ---------------------------------------------------------------


@torch.no_grad()
def test_s15_the_joint_score_is_normalised_as_that_of_a_single_model(tmp_path):
    ensemble = join(members(), 1.0)
    joint = ensemble(*ROWS).tolist()
    assert abs(statistics.fmean(joint)) > 0.1

    ensemble.set_normaliser(0.0, 1.0)
    fit_normaliser(ensemble, joint)

    found = ensemble(*ROWS).tolist()
    assert statistics.fmean(found) == pytest.approx(0, abs=1e-6)
    assert statistics.pstdev(found) == pytest.approx(1, abs=1e-5)
    mean, std = statistics.fmean(joint), statistics.pstdev(joint)
    assert found == pytest.approx([(score - mean) / std for score in joint], abs=1e-5)
    # The members keep their own.
    assert [(m.mean, m.std) for m in ensemble.members] == [(m.mean, m.std) for m in members()]
    assert load_scorer(saved(ensemble, tmp_path), CPU).normaliser == (mean, std)


@torch.no_grad()
def test_s37_a_value_function_starts_at_the_first_members_score_on_the_joint_scale():
    ensemble = join(members(), 1.0)
    ensemble.members[0].set_normaliser(0.5, 3.0)
    ensemble.set_normaliser(-0.7, 0.4)
    critic = build_actor_critic(tiny.llama(9), reward_model=ensemble, separate=True)
    hidden = ensemble.last_hidden(*ROWS)
    first = ensemble.members[0](*ROWS)
    assert torch.allclose(critic.value_head(hidden).squeeze(-1), (first + 0.7) / 0.4, atol=1e-5)


# --- to disk and back ----------------------------------------------------------------------------


@torch.no_grad()
def test_s49_saved_and_loaded_an_ensemble_gives_the_same_scores(tmp_path):
    """Eleven members: their order must be that of their numbers."""
    ensemble = join(members(11), 0.7)
    ensemble.classifier.config.ensemble_k = 0.7
    found = load_scorer(saved(ensemble, tmp_path), CPU)
    assert isinstance(found, RewardEnsemble)
    assert torch.equal(found(*ROWS), ensemble(*ROWS))
    assert [m.std for m in load_members(tmp_path, CPU)] == [1.0 + n for n in range(11)]


@torch.no_grad()
def test_s49_one_member_alone_leaves_the_folder_that_it_always_left(tmp_path):
    model = members(1)[0]
    found = load_scorer(saved(join([model], 1.0), tmp_path), CPU)
    assert torch.equal(found(*ROWS), model(*ROWS))
    assert not isinstance(found, RewardEnsemble)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert "ensemble" not in (tmp_path / "config.json").read_text()


def test_every_member_is_a_model_folder_that_any_library_can_load(tmp_path):
    saved(join(members(2), 1.0), tmp_path)
    assert is_reward_model(tmp_path)
    assert is_reward_model(tmp_path / "member_2")
    config = json.loads((tmp_path / "member_2" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
