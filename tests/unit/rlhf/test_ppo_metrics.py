"""Each metric of PPO is one field; its curve and its column come with it."""

import dataclasses

import pytest

from rlhf.params.rule_rewards import RewardMixParams
from rlhf.ppo_metrics import COMPONENTS, PPOMetrics, UpdateMetrics, curve

FIELDS = [field.name for field in dataclasses.fields(PPOMetrics) if field.name != "components"]
VALUES = {name: float(number) for number, name in enumerate(FIELDS)}
VALUES |= {"optimiser_steps": 7, "skipped_passes": 1, "tokens": 90}
COLUMNS = [
    "objective/score", "objective/kl", "objective/kl_coef", "objective/reward",
    "objective/entropy", "objective/length", "objective/finished", "objective/clipped_scores",
    "policy/loss", "policy/approx_kl", "policy/clip_fraction", "policy/ratio", "policy/grad_norm",
    "value/loss", "value/clip_fraction", "value/explained_variance", "value/grad_norm",
    "policy/kl_loss", "optimiser_steps", "skipped_passes", "tokens",
    "policy/sampler_gap", "policy/truncated_weights",
]  # fmt: skip
"""As history.csv has had them since the first release; the last two came with servers."""


def test_every_field_has_a_curve_and_the_columns_are_the_published_ones():
    made = PPOMetrics(**VALUES, components={}).curves()
    assert list(made) == COLUMNS
    assert sorted(made.values()) == sorted(VALUES.values())


def test_where_the_policy_itself_samples_there_is_no_curve_of_a_server():
    local = {name: value for name, value in VALUES.items() if name not in FIELDS[-2:]}
    assert list(PPOMetrics(**local, components={}).curves()) == COLUMNS[:-2]


def test_the_parts_of_a_mixed_score_come_last():
    made = PPOMetrics(**VALUES, components={"learned": 0.5, "sentiment": -2.0}).curves()
    assert list(made)[len(COLUMNS) :] == ["objective/learned", "objective/rule_sentiment"]
    assert (made["objective/learned"], made["objective/rule_sentiment"]) == (0.5, -2.0)


def test_every_rule_that_can_count_has_a_curve():
    weights = {name: 1.0 for name in ("length", "relevance", "format", "sentiment")}
    rules = RewardMixParams(**weights, function="mine/check.py:score").rules()
    assert set(COMPONENTS) == {"learned", *rules}


def test_a_further_field_is_a_further_curve():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(PPOMetrics):
        novel: float = curve("policy/novel", 24)

    assert list(More(**VALUES, components={}, novel=3.0).curves()) == [*COLUMNS, "policy/novel"]


def test_an_iteration_that_trains_the_values_only_has_no_curves_of_the_policy():
    counts = {"optimiser_steps": 2, "skipped_passes": 0}
    alone = UpdateMetrics(value_loss=2.0, value_clip_fraction=0.5, value_grad_norm=3.0, **counts)
    of_policy = {"objective/entropy", "policy/loss", "policy/approx_kl", "policy/clip_fraction",
                 "policy/ratio", "policy/grad_norm"}  # fmt: skip
    curves = PPOMetrics(**VALUES | dataclasses.asdict(alone), components={}).curves()
    assert set(COLUMNS) - set(curves) == of_policy
    assert curves["policy/kl_loss"] == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        alone.ratio = 1.0
