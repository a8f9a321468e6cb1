"""The walk through one PPO step: real numbers in seven steps; from a round or from nothing."""

import json
import re
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from rlhf.actor_critic import build_actor_critic, save_value_function
from rlhf.chat import decode_rows
from rlhf.classifiers import load_classifier, load_text_encoder
from rlhf.masked import sequence_sums
from rlhf.model_folders import ModelFolderError
from rlhf.params.ppo import PPOParams
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.params.sampling import SamplingParams
from rlhf.pretrain import train_tokenizer
from rlhf.scoring import score_rows
from rlhf.seeding import Seeds
from rlhf.walkthrough.__main__ import main
from rlhf.walkthrough.lines import tell
from rlhf.walkthrough.models import find_round, load_world, make_world
from rlhf.walkthrough.step import take_step
from tests import tiny
from tests.tiny import COMPUTE

TITLES = ["PROMPTS", "RESPONSES", "SCORES", "KL", "REWARDS", "ADVANTAGES", "UPDATE"]


@cache
def small():
    world = make_world(Seeds(0), COMPUTE)
    return world, take_step(world, compute=COMPUTE, seeds=Seeds(0))


def assert_readable(text: list[str]) -> None:
    steps = [re.match(r"(\d) ([A-Z]+)", line) for line in text]
    assert [(int(s[1]), s[2]) for s in steps if s] == list(enumerate(TITLES, start=1))
    assert len(text) <= 60
    assert [line for line in text if len(line) > 100] == []
    assert sum(line.startswith("WHAT IF THE KL COEFFICIENT WERE ZERO?") for line in text) == 1


def test_seven_steps_fit_one_screen_without_any_model_there():
    assert_readable(list(tell(*small())))


def test_the_numbers_of_one_response_follow_from_the_equations(assert_close):
    """GAE of the shown rollout again, backwards by hand; the sum of rewards is s - beta KL."""
    world, step = small()
    rollout, done, params = step.rollout, step.configured, world.params
    mask, beta = rollout.response_mask, params.kl_coef
    k1 = torch.where(mask, rollout.logprobs - rollout.ref_logprobs, 0.0)
    scores = torch.where(rollout.ended, rollout.scores, rollout.scores - 1.0)
    assert beta > 0
    assert k1.abs().sum() > 1
    assert_close(sequence_sums(done.rewards, mask), scores - beta * k1.sum(1), rtol=0, atol=1e-5)
    assert_close(sequence_sums(step.at_zero.rewards, mask), scores, rtol=0, atol=1e-5)
    for row in range(4):
        real = int(mask[row].sum())
        advantage = 0.0
        for t in reversed(range(real)):
            following = rollout.values[row, t + 1].item() if t + 1 < real else 0.0
            value = rollout.values[row, t].item()
            delta = done.rewards[row, t].item() + params.gamma * following - value
            advantage = delta + params.gamma * params.lam * advantage
            assert_close(done.batch.returns[row, t], advantage + value, rtol=0, atol=1e-4)


def test_the_penalty_holds_tokens_back_that_left_the_reference():
    """Each such token loses beta k1 of reward, so it is worth less and becomes less likely.

    Neither is noise; the KL after a single update is (it falls without a penalty for some seeds).
    """
    _, step = small()
    rollout, mask = step.rollout, step.rollout.response_mask
    far = mask & (rollout.logprobs - rollout.ref_logprobs > 0.5)
    assert far.sum() > 10
    with_penalty, without = step.configured, step.at_zero
    assert with_penalty.batch.advantages[far].mean() < without.batch.advantages[far].mean() - 0.2
    assert with_penalty.logprobs[far].mean() < without.logprobs[far].mean()


def test_both_updates_start_from_the_same_weights_and_leave_the_world_as_it_was(assert_close):
    world, step = small()
    again = take_step(world, compute=COMPUTE, seeds=Seeds(0))
    assert torch.equal(again.rollout.response_ids, step.rollout.response_ids)
    assert_close(again.configured.kl, step.configured.kl, rtol=0, atol=1e-6)
    assert again.at_zero.metrics == step.at_zero.metrics


def test_at_zero_means_zero_where_the_kl_is_in_the_loss():
    world, _ = small()
    params = replace(world.params, kl_in="loss", kl_estimator="k2")
    step = take_step(replace(world, params=params), compute=COMPUTE, seeds=Seeds(0))
    mask = step.rollout.response_mask
    assert torch.equal(step.configured.rewards, step.at_zero.rewards)
    assert not torch.equal(step.configured.logprobs[mask], step.at_zero.logprobs[mask])
    text = "".join(tell(replace(world, params=params), step))
    assert "in the loss" in text
    assert "s − β·KL" not in text


def write_round(root: Path, params: PPOParams, key: str = "r2") -> None:
    """What a round leaves behind, with tiny models."""
    tokenizer = tiny.tokenizer()
    size = len(tokenizer)
    policy, sft = root / f"models/rounds/{key}/policy", root / "models/sft"
    lm = tiny.llama(1, size)
    for folder, model in ((policy, lm), (sft, tiny.llama(0, size))):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        manifest = {"params": {"ppo": json.loads(json.dumps(asdict(params)))}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    save_value_function(build_actor_critic(lm, reward_model=None, separate=True), policy)
    scorer = tiny.reward_model(7, size)
    scorer.set_normaliser(0.0, 0.5)
    scorer.classifier.save_pretrained(root / f"models/rounds/{key}/reward")
    prompts = root / "data/prepared/prompts/heldout.jsonl"
    prompts.parent.mkdir(parents=True)
    rows = [{"prompt_id": str(n), "prompt": line} for n, line in enumerate(tiny.LINES)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))


PARAMS = PPOParams(
    kl_coef=0.3, rollout_size=128, value_model="separate", sampling=SamplingParams(max_new_tokens=8)
)


def test_a_round_that_is_there_is_walked_with_its_own_models_and_parameters(tmp_path: Path):
    write_round(tmp_path, PARAMS)
    assert find_round(tmp_path) == "r2"
    world = load_world(tmp_path, "r2", COMPUTE)
    assert (world.params.kl_coef, world.params.rollout_size) == (0.3, 4)
    assert world.models.reward_model is not None
    text = list(tell(world, take_step(world, compute=COMPUTE, seeds=Seeds(0))))
    assert "models/rounds/r2/policy" in text[0]
    assert "β = 0.3" in "".join(text)
    assert_readable(text)


@pytest.mark.parametrize(("minibatches", "steps"), [(8, 4), (3, 1), (2, 2)])
def test_of_few_prompts_as_many_minibatches_are_made_as_have_equal_parts(
    tmp_path: Path, minibatches: int, steps: int
):
    """Of the four that are there, not of the 120 of a rollout."""
    write_round(tmp_path, replace(PARAMS, rollout_size=120, minibatches=minibatches))
    world = load_world(tmp_path, "r2", COMPUTE)
    step = take_step(world, compute=COMPUTE, seeds=Seeds(0))
    assert step.configured.metrics.optimiser_steps == steps
    assert_readable(list(tell(world, step)))


def test_a_round_with_longer_prompts_only_is_one_line(tmp_path: Path):
    write_round(tmp_path, replace(PARAMS, max_prompt_tokens=1))
    with pytest.raises(ModelFolderError, match="none of 4 prompts has at most 1 tokens"):
        load_world(tmp_path, "r2", COMPUTE)


@pytest.mark.parametrize("advantage", ["rloo", "grpo", "reinforce_pp"])
def test_a_round_without_a_value_function_is_walked_with_its_own_estimator(tmp_path, advantage):
    write_round(tmp_path, replace(PARAMS, advantage=advantage, samples_per_prompt=2))
    world = load_world(tmp_path, "r2", COMPUTE)
    assert world.models.actor.value_head is None
    step = take_step(world, compute=COMPUTE, seeds=Seeds(0))
    assert len(step.rollout) == world.params.rollout_size == 2 * len(world.prompts) == 8
    text = list(tell(world, step))
    assert_readable(text)
    assert sum("no value function" in line for line in text) == 1
    assert [line for line in text if "λ" in line or "value loss" in line] == []


def test_a_reward_model_with_words_of_its_own_reads_text(tmp_path: Path, assert_close):
    write_round(tmp_path, PARAMS)
    folder, classifier = tmp_path / "models/rounds/r2/reward", tiny.classifier()
    classifier.config.update({"reads_text": True, "score_mean": 0.1, "score_std": 0.5})
    classifier.save_pretrained(folder)
    train_tokenizer(tiny.LINES, 290).save_pretrained(folder)

    world = load_world(tmp_path, "r2", COMPUTE)
    rollout = take_step(world, compute=COMPUTE, seeds=Seeds(0)).rollout

    said = decode_rows(world.tokenizer, rollout.response_ids, rollout.response_mask)
    rows = zip(tiny.LINES, said, rollout.ended.tolist(), strict=True)
    encoder, judge = load_text_encoder(folder), load_classifier(folder, COMPUTE.device)
    read = [encoder.encode(prompt, text, finished=end) for prompt, text, end in rows]
    expected = score_rows(judge, read, pad_id=encoder.pad_id, compute=COMPUTE)
    assert_close(rollout.scores, expected, rtol=0, atol=1e-5)


@pytest.mark.long
def test_small_models_that_were_asked_for_are_no_sign_that_there_is_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_round(tmp_path, PARAMS)
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert main(["--small"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("One PPO step: small models made just now: as --small asks;\n")
    assert "no round" not in said


def test_a_round_without_its_reward_model_is_not_taken(tmp_path: Path):
    write_round(tmp_path, PARAMS)
    (tmp_path / "models/rounds/r2/reward/config.json").unlink()
    assert find_round(tmp_path) is None


def write_check(root: Path, body: str) -> None:
    """A round without a reward model, and the function that rewarded it."""
    (root / "check.py").write_text(f"def score(prompts, responses):\n    {body}\n")
    rewards = RewardMixParams(learned=0.0, function="check.py:score")
    write_round(root, replace(PARAMS, value_init="zero", rewards=rewards))
    shutil.rmtree(root / "models/rounds/r2/reward")


def test_a_round_that_a_function_has_rewarded_is_taken_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_check(tmp_path, "return [float(len(response)) for response in responses]")
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    said = capsys.readouterr().out
    assert_readable(said.splitlines())
    assert "policy models/rounds/r2/policy" in said
    assert "models/rounds/r2/reward" not in said
    assert "from the rules (rlhf.rule_rewards)" in said


def test_a_function_that_fails_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_check(tmp_path, "raise KeyError('lamp')")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert main(["--round", "r2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("walkthrough: ppo.rewards.function: check.py:score: KeyError: 'lamp'")
    assert error.count("\n") == 1


def test_a_round_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(["--round", "r9"]) == 2
    assert "no policy of round r9" in (error := capsys.readouterr().err)
    assert "there are: none" in error
    write_round(tmp_path, PARAMS)
    capsys.readouterr()
    assert main(["--round", "r9"]) == 2
    error = capsys.readouterr().err
    assert "there are: r2 (" in error
    assert error.count("\n") == 1


def test_parameters_of_another_version_are_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_round(tmp_path, PARAMS)
    capsys.readouterr()
    path = tmp_path / "models/rounds/r2/policy/manifest.json"
    path.write_text('{"params": {"ppo": {"no_such_key": 1}}}')
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("walkthrough: models/rounds/r2/policy/manifest.json: made by another")
    assert error.count("\n") == 1


@pytest.mark.long
def test_the_page_shows_what_the_command_prints_in_a_fresh_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (Path(__file__).resolve().parents[3] / "docs/walkthrough.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert capsys.readouterr().out == page.split("```text\n")[1].split("```")[0]


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "seven numbered steps" in capsys.readouterr().out
