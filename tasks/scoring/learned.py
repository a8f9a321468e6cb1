"""Scores of responses by what rewards a round: its reward model, rules, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf.chat import Prompt
from rlhf.classifiers import load_classifier, load_text_encoder, reads_text
from rlhf.compute import HOST, Compute
from rlhf.ensembles import load_scorer
from rlhf.frozen import freeze
from rlhf.models import load_tokenizer
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.rule_rewards import LearnedScore, build_rule_rewards
from rlhf.scoring import score_rows, text_scores
from rlhf.special_ids import special_ids

SFT = Path("models/sft")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Responses as text, with the token ids that were sampled."""

    prompts: Sequence[Prompt]
    responses: Sequence[str]
    finished: Sequence[bool]
    rows: Sequence[Sequence[int]]
    """Ids of each prompt with its response."""


def rewarded_by(
    folder: Path, rewards: RewardMixParams
) -> Literal["reward_model", "rules", "mixed_reward"]:
    """What a round's scores come from: the reward model of its folder, rules alone, or both."""
    if rewards.learned == 0 or not (folder / "config.json").is_file():
        return "rules"
    return "mixed_reward" if rewards.rules() else "reward_model"


def text_scorer(folder: Path, compute: Compute) -> LearnedScore | None:
    """The scores of a reward model that reads text; None for one that reads the policy's ids."""
    if not reads_text(folder):
        return None
    model = freeze(load_classifier(folder, HOST), compute)
    return text_scores(model, load_text_encoder(folder), compute)


def score_responses(
    folder: Path, texts: Texts, rewards: RewardMixParams, compute: Compute
) -> list[float]:
    """Normalised scores of the round's reward model, for the sampled tokens where it reads them.

    With rules beside it the weighted sum that PPO raised; without a reward model, or a weight of
    it, that of the rules.
    """
    kind = rewarded_by(folder, rewards)
    if kind == "reward_model":
        return _learned_scores(folder, texts, compute)
    rules = build_rule_rewards(rewards, load_tokenizer(SFT))
    assert rules is not None, "reward.model none needs ppo.rewards.learned 0"
    given = rules.score(texts.prompts, texts.responses, texts.finished)
    if kind == "rules":
        return given
    learned = _learned_scores(folder, texts, compute)
    return [rewards.learned * one + other for one, other in zip(learned, given, strict=True)]


def _learned_scores(folder: Path, texts: Texts, compute: Compute) -> list[float]:
    """Normalised scores of a reward model alone."""
    by_text = text_scorer(folder, compute)
    if by_text is not None:
        return by_text(texts.prompts, texts.responses, texts.finished)
    tokens = special_ids(load_tokenizer(folder))
    # As in PPO: of several stop ids the reward model was trained with one.
    rows = [
        [*row[:-1], tokens.eos] if ended else row
        for row, ended in zip(texts.rows, texts.finished, strict=True)
    ]
    model = freeze(load_scorer(folder, HOST), compute)
    return score_rows(model, rows, pad_id=tokens.pad, compute=compute)
