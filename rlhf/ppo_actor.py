"""What PPO trains: a policy with the value function that its settings ask for, or alone."""

from transformers import PreTrainedModel

from rlhf.actor_critic import ActorCritic, build_actor_critic
from rlhf.params.ppo import PPOParams
from rlhf.reward_models import RewardModel


def build_actor(
    lm: PreTrainedModel, params: PPOParams, *, reward_model: RewardModel | None = None
) -> ActorCritic:
    """A policy with the value function that `params` ask for, or alone where they ask for none."""
    if not params.has_value_function():
        return ActorCritic(lm).eval()
    return build_actor_critic(
        lm,
        reward_model=reward_model if params.value_init == "reward" else None,
        separate=params.value_model == "separate",
    )
