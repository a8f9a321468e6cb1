"""A policy with its value function, which on disk lies in a folder below the policy's weights."""

import copy
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from rlhf.compute import in_float32
from rlhf.logits import before_response, language_model_head
from rlhf.model_folders import ModelFolderError
from rlhf.reward_models import RewardModel
from rlhf.shapes import (
    HiddenStates,
    Logits,
    PerToken,
    PromptIds,
    PromptMask,
    ResponseIds,
    ResponseMask,
)

VALUE_FUNCTION = "value_function/weights.safetensors"
"""Below a policy's folder, since many loaders read every `*.safetensors` in it as its weights."""


class PolicyOutput(NamedTuple):
    """What the policy says about a batch of responses."""

    logits: Logits
    values: PerToken


class PolicyStates(NamedTuple):
    """What the policy says about a batch of responses, before its language-model head."""

    hidden: HiddenStates
    values: PerToken


class ActorCritic(nn.Module):
    """A policy and its value function, on one trunk or on two.

    With a shared trunk one forward pass gives logits and values. A separate value trunk costs a
    second pass and keeps the value loss away from the policy's weights. Without a value head it is
    the policy alone, and its values are 0.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        value_head: nn.Linear | None = None,
        value_trunk: nn.Module | None = None,
    ):
        """Join the parts; a value head without a trunk shares the policy's."""
        super().__init__()
        self.lm = lm
        self.value_head = value_head
        self.value_trunk = value_trunk

    def forward(
        self,
        prompt_ids: PromptIds,
        prompt_mask: PromptMask,
        response_ids: ResponseIds,
        response_mask: ResponseMask,
    ) -> PolicyOutput:
        """Logits of every response token and the value of the state before it."""
        states = self.states(prompt_ids, prompt_mask, response_ids, response_mask)
        return PolicyOutput(language_model_head(self.lm, states.hidden), states.values)

    def states(
        self,
        prompt_ids: PromptIds,
        prompt_mask: PromptMask,
        response_ids: ResponseIds,
        response_mask: ResponseMask,
        *,
        packing: bool = False,
    ) -> PolicyStates:
        """The same with hidden states in place of logits, which are too many of a large batch."""
        batch = (prompt_ids, prompt_mask, response_ids, response_mask)
        hidden = self.hidden(*batch, packing=packing)
        if self.value_head is None:
            return PolicyStates(hidden, hidden.new_zeros(response_ids.shape, dtype=torch.float32))
        value_hidden = hidden
        if self.value_trunk is not None:
            value_hidden = before_response(self.value_trunk, batch, packing=packing)
        return PolicyStates(hidden, self._read_values(value_hidden))

    def hidden(
        self,
        prompt_ids: PromptIds,
        prompt_mask: PromptMask,
        response_ids: ResponseIds,
        response_mask: ResponseMask,
        *,
        packing: bool = False,
    ) -> HiddenStates:
        """The policy's hidden states alone."""
        batch = (prompt_ids, prompt_mask, response_ids, response_mask)
        return before_response(self.lm.base_model, batch, packing=packing)

    def values(
        self,
        prompt_ids: PromptIds,
        prompt_mask: PromptMask,
        response_ids: ResponseIds,
        response_mask: ResponseMask,
        *,
        packing: bool = False,
    ) -> PerToken:
        """The values alone, with a gradient for what belongs to the value function only.

        A separate trunk needs no pass of the policy, a shared one no backward pass.
        """
        batch = (prompt_ids, prompt_mask, response_ids, response_mask)
        with torch.set_grad_enabled(self.value_trunk is not None and torch.is_grad_enabled()):
            trunk = self.lm.base_model if self.value_trunk is None else self.value_trunk
            hidden = before_response(trunk, batch, packing=packing)
        return self._read_values(hidden)

    def _read_values(self, hidden: HiddenStates) -> PerToken:
        assert self.value_head is not None
        with in_float32(hidden.device):
            values: PerToken = self.value_head(hidden.float()).squeeze(-1)
        return values


def build_actor_critic(
    lm: PreTrainedModel, *, reward_model: RewardModel | None, separate: bool
) -> ActorCritic:
    """A policy with a value function that starts at zero or at the reward model's score.

    From a reward model, with its trunk (`separate`), the value at a response's end token is its
    normalised score at step 0. Without a reward model a separate trunk is a copy of the policy's.

    Raises:
        ModelFolderError: the reward model's hidden states have another width than the policy's.
    """
    hidden_size = lm.get_input_embeddings().weight.shape[1]
    if reward_model is not None and reward_model.head.weight.shape[1] != hidden_size:
        raise ModelFolderError(
            f"ppo.value_init: reward, but the reward model is {reward_model.head.weight.shape[1]} "
            f"wide and the policy {hidden_size}, so no value model can start from it; take zero"
        )
    head = nn.Linear(hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if reward_model is not None:
        head.weight.data.copy_(reward_model.head.weight.data / reward_model.std)
        head.bias.data.fill_(-reward_model.mean / reward_model.std)
    trunk = None
    if separate:
        source = lm if reward_model is None else reward_model.classifier
        trunk = copy.deepcopy(source.base_model)
    device = next(lm.parameters()).device
    return ActorCritic(lm, head, trunk).to(device).eval()


def save_value_function(model: ActorCritic, folder: Path) -> None:
    """Write the value head (and its trunk, where it has one) below the policy's folder."""
    assert model.value_head is not None
    tensors = {f"head.{name}": value for name, value in model.value_head.state_dict().items()}
    if model.value_trunk is not None:
        tensors |= {f"trunk.{key}": value for key, value in model.value_trunk.state_dict().items()}
    path = folder / VALUE_FUNCTION
    path.parent.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


def load_value_function(model: ActorCritic, folder: Path) -> None:
    """Read back what `save_value_function` wrote; the shapes must agree."""
    assert model.value_head is not None
    tensors = load_file(folder / VALUE_FUNCTION)
    head = {key[5:]: value for key, value in tensors.items() if key.startswith("head.")}
    trunk = {key[6:]: value for key, value in tensors.items() if key.startswith("trunk.")}
    model.value_head.load_state_dict(head)
    if (model.value_trunk is not None) != bool(trunk):
        kinds = {True: "separate", False: "shared"}
        raise ModelFolderError(
            f"{folder / VALUE_FUNCTION}: expected a {kinds[not trunk]} value model, "
            f"found a {kinds[bool(trunk)]} one"
        )
    if model.value_trunk is not None:
        model.value_trunk.load_state_dict(trunk)
