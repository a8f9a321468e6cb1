"""The models of a round of PPO, from their folders to the device.

They are loaded on the host and cast there, so a device never holds in float32 what it computes with
in bfloat16: policy and reward model of 8B would take 58 GiB before the first response.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from rlhf.actor_critic import VALUE_FUNCTION, ActorCritic, load_value_function
from rlhf.compute import HOST, Compute
from rlhf.ensembles import load_scorer, members_of
from rlhf.frozen import cast_frozen, freeze, load_frozen_policy
from rlhf.lora import ADAPTER, add_adapter, load_adapter, scale_adapter
from rlhf.models import load_policy
from rlhf.packing import check_packing
from rlhf.params.ppo import PPOParams
from rlhf.positions import check_positions, longest_row
from rlhf.ppo_actor import build_actor
from rlhf.reward_models import RewardModel
from rlhf.rollouts import PPOModels
from rlhf.weight_average import interpolate


def load_models(
    start: Path,
    sft: Path,
    reward: Path | None,
    params: PPOParams,
    compute: Compute,
    *,
    prompts: Sequence[Sequence[int]],
    draws: torch.Generator,
) -> PPOModels:
    """The policy with its value function, the reference and the reward model, on the device.

    Args:
        start: the policy that the round starts from; its value function and its adapter lie there.
        sft: the reference of the KL; with LoRA the policy is this model with an adapter.
        reward: the reward model that scores the policy's ids; None: the round has none.
        params: of PPO.
        compute: where, and in which precision.
        prompts: token ids of a few, to try packed rows with.
        draws: the weights of a fresh adapter.

    Raises:
        ModelFolderError: a folder holds no such model.
        PositionsError: the policy has fewer positions than the longest row.
        PackingError: packed rows are asked for, and a model cannot read them.
    """
    reward_model = None if reward is None else load_scorer(reward, HOST)
    actor = _actor(start, sft, reward_model, params, draws)
    check_positions(
        actor.lm, longest_row("ppo", params.max_prompt_tokens, params.sampling.max_new_tokens)
    )
    if params.packing:
        _check_packing(actor, reward_model, prompts, compute.device)
    cast_frozen(actor.lm, compute)
    return PPOModels(
        actor=actor.to(compute.device),
        reference=load_frozen_policy(sft, compute) if params.lora is None else actor.lm,
        # The value function may have started from these weights, in full precision.
        reward_model=None if reward_model is None else freeze(reward_model, compute),
    )


def _actor(
    start: Path,
    sft: Path,
    reward_model: RewardModel | None,
    params: PPOParams,
    draws: torch.Generator,
) -> ActorCritic:
    """The policy that the round starts from; its value function is the one beside it, if any.

    An estimator of the advantage that needs none gets none, whatever lies there. With LoRA the
    policy is SFT with the adapter of the starting policy, or with a fresh one. SFT's share in the
    starting weights is mixed in afterwards, so the value function knows nothing of it.
    """
    lm = load_policy(start if params.lora is None else sft, HOST)
    if params.lora is None and params.start_sft and start != sft:
        interpolate(lm, load_policy(sft, HOST), params.start_sft)
    actor = build_actor(lm, params, reward_model=reward_model)
    carries = actor.value_head is not None and params.value_carry
    if carries and (start / VALUE_FUNCTION).is_file():
        load_value_function(actor, start)
    if params.lora is not None and start == sft:
        add_adapter(actor.lm, params.lora, draws)
    elif params.lora is not None:
        load_adapter(actor.lm, start / ADAPTER, params.lora)
        scale_adapter(actor.lm, 1 - params.start_sft)
    return actor


def _check_packing(
    actor: ActorCritic,
    reward_model: RewardModel | None,
    prompts: Sequence[Sequence[int]],
    device: torch.device,
) -> None:
    """Every trunk can read packed rows: in full precision, one on the device at a time."""
    members = [] if reward_model is None else members_of(reward_model)
    trunks: list[nn.Module] = [
        actor.lm.base_model,
        *(member.classifier.base_model for member in members),
    ]
    if actor.value_trunk is not None:
        trunks.append(actor.value_trunk)
    for trunk in trunks:
        check_packing(trunk.to(device), prompts, setting="ppo.packing")
        trunk.to(HOST)
