"""A rollout: answers of the policy with what all four models say about them."""

import pytest
import torch

from rlhf.actor_critic import build_actor_critic
from rlhf.draws import draw_table
from rlhf.params.sampling import SamplingParams
from rlhf.rollouts import MicroBatches, PPOModels, collect_rollout
from tests import tiny
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS

MANY = [prompt for prompt in PROMPTS for _ in range(6)]


def models(*, actor_seed: int = 0, reference_seed: int = 0) -> PPOModels:
    scorer = tiny.reward_model()
    scorer.set_normaliser(0.2, 0.5)
    actor = build_actor_critic(tiny.llama(actor_seed), reward_model=scorer, separate=True)
    return PPOModels(actor=actor, reference=tiny.llama(reference_seed), reward_model=scorer)


def collect(models, prompts=MANY, *, seed=0, micro=4, temperature=1.0, tokens=5, special=TOKENS):
    return collect_rollout(
        models,
        prompts,
        SamplingParams(temperature=temperature, max_new_tokens=tokens),
        special,
        micro_batches=MicroBatches(micro),
        compute=COMPUTE,
        draws=draw_table(seed, prompts, tokens),
    )


def answers(rollout) -> list[list[int]]:
    rows = zip(rollout.response_ids, rollout.response_mask, strict=True)
    return [ids[mask].tolist() for ids, mask in rows]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
@torch.no_grad()
def test_s04_logprobs_are_those_of_each_sequence_alone_at_the_sampling_temperature(
    assert_close, temperature
):
    """Old, reference, and with the same temperature; against transformers' own forward pass."""
    world = models(reference_seed=1)
    rollout = collect(world, temperature=temperature)
    for row, (prompt, answer) in enumerate(zip(MANY, answers(rollout), strict=True)):
        for lm, found in (
            (world.actor.lm, rollout.logprobs),
            (world.reference, rollout.ref_logprobs),
        ):
            logits = lm(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
            every = (logits / temperature).log_softmax(-1)
            expected = every[range(len(answer)), answer]
            assert_close(found[row, : len(answer)], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s05_the_policy_that_is_scored_is_the_one_that_was_sampled_from():
    """How often a token was drawn is what its log-probability says, within 3 standard errors."""
    rollout = collect(models(), [PROMPTS[0]] * 4000, micro=4000, temperature=0.6, tokens=1)
    ids, probabilities = rollout.response_ids[:, 0], rollout.logprobs[:, 0].exp()
    for token in ids.unique().tolist():
        drawn = ids == token
        expected = probabilities[drawn][0].item()
        error = (expected * (1 - expected) / 4000) ** 0.5
        assert abs(drawn.float().mean().item() - expected) <= 3 * error


@torch.no_grad()
def test_s11_a_policy_that_is_the_reference_has_no_kl_at_any_token(assert_close):
    rollout = collect(models())
    assert_close(rollout.logprobs, rollout.ref_logprobs, rtol=0, atol=1e-6)


@torch.no_grad()
def test_s11_another_policy_has_kl():
    rollout = collect(models(reference_seed=1))
    gaps = (rollout.logprobs - rollout.ref_logprobs)[rollout.response_mask]
    assert gaps.abs().min() > 0


@torch.no_grad()
def test_s07_the_reward_model_reads_the_very_ids_that_the_policy_emitted(assert_close):
    """Peer defect 8: scored alone, prompt and answer as token ids give the same score."""
    world = models()
    rollout = collect(world)
    for row, (prompt, answer) in enumerate(zip(MANY, answers(rollout), strict=True)):
        ids = torch.tensor([[*prompt, *answer]])
        expected = world.reward_model(ids, torch.ones_like(ids).bool())[0]
        assert_close(rollout.scores[row], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s07_of_several_stop_ids_the_reward_model_reads_the_one_that_it_was_trained_with(
    assert_close,
):
    """It knows nothing of the others: a policy would learn which of them it likes best."""
    world, others = models(), tuple(range(2, 6))
    rollout = collect(world, special=TOKENS._replace(others=others))
    ends = {answer[-1] for answer in answers(rollout)}
    assert ends & {*others}
    for row, (prompt, answer) in enumerate(zip(MANY, answers(rollout), strict=True)):
        said = [*answer[:-1], EOS] if rollout.ended[row] else answer
        ids = torch.tensor([[*prompt, *said]])
        expected = world.reward_model(ids, torch.ones_like(ids).bool())[0]
        assert_close(rollout.scores[row], expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s15_scores_are_normalised_once(assert_close):
    world = models()
    scores = collect(world).scores
    world.reward_model.set_normaliser(0.0, 1.0)
    assert_close(scores, (collect(world).scores - 0.2) / 0.5, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s37_values_are_those_of_the_actor_on_each_sequence_alone(assert_close):
    world = models()
    rollout = collect(world)
    for row, (prompt, answer) in enumerate(zip(MANY, answers(rollout), strict=True)):
        ids, response = torch.tensor([prompt]), torch.tensor([answer])
        alone = world.actor(
            ids, torch.ones_like(ids).bool(), response, torch.ones_like(response).bool()
        )
        assert_close(rollout.values[row, : len(answer)], alone.values[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_s06_the_end_token_is_inside_the_mask_and_the_only_thing_that_makes_a_response_ended():
    """Peer defect 1."""
    rollout = collect(models(), MANY * 10, micro=240)
    assert 0 < rollout.ended.sum() < len(rollout)
    for answer, ended in zip(answers(rollout), rollout.ended.tolist(), strict=True):
        assert (answer[-1] == EOS) is ended
        assert EOS not in answer[:-1]


@torch.no_grad()
def test_s09_prompts_longer_than_any_response_are_kept_whole():
    """Peer defect 9: prompts padded or cut to the length of the response."""
    prompts = [list(range(2, 16)) * 3, [4, 5]]
    rollout = collect(models(), prompts, tokens=2)
    rows = zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)
    assert [ids[mask].tolist() for ids, mask in rows] == prompts
    assert (rollout.prompt_ids[~rollout.prompt_mask] == PAD).all()


@pytest.mark.parametrize("micro", [1, 5, 24])
@torch.no_grad()
def test_s32_the_micro_batch_size_changes_no_rollout(assert_close, micro):
    whole, parts = collect(models(), micro=1000), collect(models(), micro=micro)
    assert torch.equal(whole.response_ids, parts.response_ids)
    mask = whole.response_mask
    for name in ("logprobs", "ref_logprobs", "values"):
        found, expected = getattr(parts, name), getattr(whole, name)
        assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)
    assert_close(parts.scores, whole.scores, rtol=0, atol=1e-5)


@torch.no_grad()
def test_s57_the_draws_alone_decide_what_is_sampled():
    torch.manual_seed(1)
    first = collect(models(), seed=3)
    torch.manual_seed(2)
    second = collect(models(), seed=3)
    assert torch.equal(first.response_ids, second.response_ids)
    assert torch.equal(first.logprobs, second.logprobs)
    assert answers(collect(models(), seed=4)) != answers(first)


@torch.no_grad()
def test_s57_the_other_prompts_of_a_rollout_and_their_order_change_no_response():
    world, prompts = models(), [[*prompt, token] for prompt in PROMPTS for token in range(2, 8)]
    together = answers(collect(world, prompts, tokens=8))
    assert len({len(row) for row in together}) > 2
    backwards = answers(collect(world, prompts[::-1], tokens=8))
    assert backwards[::-1] == together
    assert answers(collect(world, prompts[1::3], tokens=8)) == together[1::3]


def test_s25_a_rollout_carries_no_gradient():
    rollout = collect(models())
    for name in ("logprobs", "ref_logprobs", "values", "scores"):
        assert not getattr(rollout, name).requires_grad
