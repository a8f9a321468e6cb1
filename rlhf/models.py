"""The models: a policy with its value function, and a reward model with its score normaliser.

All are hub folders in safetensors. The reward model is a sequence classifier with one label, so any
library can load it; its normaliser travels in `config.json` as `score_mean` and `score_std`. A
policy's value head lies beside its weights in `value_head.safetensors`.
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf.chat import check_tokenizer
from rlhf.last_block import computed_only_at
from rlhf.masked import last_token_index
from rlhf.model_folders import ModelFolderError, loading, require_model_folder
from rlhf.padding import position_ids
from rlhf.shapes import (
    AttentionMask,
    Logits,
    PerSequence,
    PerToken,
    PromptIds,
    PromptMask,
    ResponseIds,
    ResponseMask,
    TokenIds,
)

VALUE_HEAD = "value_head.safetensors"
HEAD = "score.weight"
"""The weight of a sequence classifier that a causal model does not have."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer, checked for an end token that differs from padding."""
    require_model_folder(folder)
    with loading(folder):
        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer = cast(PreTrainedTokenizerBase, loaded)
    check_tokenizer(tokenizer, source=str(folder))
    return tokenizer


def load_policy(folder: Path, device: torch.device) -> PreTrainedModel:
    """A causal language model in float32, in evaluation mode: dropout stays off everywhere."""
    require_model_folder(folder)
    if is_reward_model(folder):
        raise ModelFolderError(f"{folder}: expected a policy, found a reward model")
    model, missing = _load(AutoModelForCausalLM, folder)
    if missing:
        raise ModelFolderError(f"{folder}: weights are missing: {', '.join(missing)}")
    return model.to(device).eval()


def _load(kind: Any, folder: Path, **config: Any) -> tuple[PreTrainedModel, list[str]]:
    """A model in float32 and the names of the weights that the folder does not hold.

    transformers draws those at random and only warns; what that means is for the caller to decide.
    """
    with loading(folder):
        model, report = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **config,
        )
    for name, found, expected in sorted(report["mismatched_keys"]):
        shapes = f"has shape {tuple(found)}, expected {tuple(expected)}"
        raise ModelFolderError(f"{folder}: {name} {shapes}")
    return cast(PreTrainedModel, model), sorted(report["missing_keys"])


def sequence_hidden(
    trunk: nn.Module, ids: TokenIds, mask: AttentionMask, *, read: AttentionMask | None = None
) -> Tensor:
    """Hidden states (batch, sequence, hidden) with positions counted over real tokens only.

    Ids under padding are replaced by 0, a legal id whatever the pad id is. Where only some
    positions will be `read`, the others' hidden states are not computed to the end.
    """
    with computed_only_at(trunk, mask if read is None else read):
        output = trunk(
            input_ids=torch.where(mask, ids, 0),
            attention_mask=mask.long(),
            position_ids=position_ids(mask),
            use_cache=False,
        )
    return cast(Tensor, output.last_hidden_state)


def _before_response(trunk: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Hidden states (batch, response, hidden) of prompts and responses, each with its mask.

    Position `prompt + t - 1` predicts response token t, so they are read one step early.
    """
    ids, mask = torch.cat(batch[0::2], dim=1), torch.cat(batch[1::2], dim=1)
    read, before = torch.zeros_like(mask), slice(batch[0].shape[1] - 1, -1)
    read[:, before] = batch[3]
    return sequence_hidden(trunk, ids, mask, read=read)[:, before]


class PolicyOutput(NamedTuple):
    """What the policy says about a batch of responses."""

    logits: Logits
    values: PerToken


class ActorCritic(nn.Module):
    """A policy and its value function, on one trunk or on two.

    With a shared trunk one forward pass gives logits and values. A separate value trunk costs a
    second pass and keeps the value loss away from the policy's weights.
    """

    def __init__(self, lm: PreTrainedModel, value_head: nn.Linear, value_trunk: nn.Module | None):
        """Join the parts; `value_trunk=None` shares the policy's trunk."""
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
        batch = (prompt_ids, prompt_mask, response_ids, response_mask)
        hidden = _before_response(self.lm.base_model, batch)
        trunk = self.value_trunk
        value_hidden = hidden if trunk is None else _before_response(trunk, batch)
        values = self.value_head(value_hidden).squeeze(-1)
        return PolicyOutput(language_model_head(self.lm, hidden), values.float())


def language_model_head(lm: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits in float32 from hidden states, for the positions asked for only."""
    head = lm.get_output_embeddings()
    assert isinstance(head, nn.Module), f"{type(lm).__name__} has no output embeddings"
    return cast(Tensor, head(hidden)).float()


def response_logits(
    lm: PreTrainedModel,
    prompt_ids: PromptIds,
    prompt_mask: PromptMask,
    response_ids: ResponseIds,
    response_mask: ResponseMask,
) -> Logits:
    """Logits that predict every response token, (batch, response, vocab)."""
    batch = (prompt_ids, prompt_mask, response_ids, response_mask)
    return language_model_head(lm, _before_response(lm.base_model, batch))


class RewardModel(nn.Module):
    """A scalar score for a prompt with its response, normalised on reference responses.

    score = (head(hidden at the last real token) - mean) / std
    """

    def __init__(self, classifier: PreTrainedModel):
        """Wrap a one-label sequence classifier; its config may carry the normaliser."""
        super().__init__()
        self.classifier = classifier

    @property
    def mean(self) -> float:
        """Mean raw score of the reference responses (0 before the normaliser is fitted)."""
        return float(getattr(self.classifier.config, "score_mean", 0.0))

    @property
    def std(self) -> float:
        """Standard deviation of the raw scores of the reference responses (1 before fitting)."""
        return float(getattr(self.classifier.config, "score_std", 1.0))

    def set_normaliser(self, mean: float, std: float) -> None:
        """Store the normaliser; raises ValueError for a spread that is not positive."""
        if not std > 0:
            raise ValueError(
                f"the reward model gives every reference response one score (std {std})"
            )
        self.classifier.config.score_mean = mean
        self.classifier.config.score_std = std

    @property
    def head(self) -> nn.Linear:
        """The scalar head, (1, hidden)."""
        return cast(nn.Linear, self.classifier.score)

    def raw_scores(self, ids: TokenIds, mask: AttentionMask) -> PerSequence:
        """Scores before normalisation, read at each row's last real token.

        A row without a real token raises `EmptyMaskError`.
        """
        last = last_token_index(mask)
        rows = torch.arange(ids.shape[0], device=ids.device)
        read = torch.zeros_like(mask)
        read[rows, last] = True
        hidden = sequence_hidden(self.classifier.base_model, ids, mask, read=read)
        return cast(Tensor, self.head(hidden[rows, last])).squeeze(-1).float()

    def forward(self, ids: TokenIds, mask: AttentionMask) -> PerSequence:
        """Normalised scores; padding on either side changes nothing."""
        return (self.raw_scores(ids, mask) - self.mean) / self.std


def load_reward_model(
    folder: Path, device: torch.device, generator: torch.Generator
) -> RewardModel:
    """A reward model from its folder, ours or another's, or a fresh one on a causal model's trunk.

    A folder without a head gets a fresh one, drawn from N(0, 1/sqrt(hidden + 1)) (Stiennon et al.
    2020), without a bias. A head that is there stays as it is.
    """
    require_model_folder(folder)
    model, missing = _load(AutoModelForSequenceClassification, folder, num_labels=1)
    lacking = [name for name in missing if name != HEAD]
    if lacking:
        raise ModelFolderError(f"{folder}: weights are missing: {', '.join(lacking)}")
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise ModelFolderError(
            f"{folder}: a {type(model).__name__} has no head called 'score'; reward models need one"
        )
    reward_model = RewardModel(model)
    if missing:
        weight = reward_model.head.weight
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(noise / (weight.shape[1] + 1) ** 0.5)
    return reward_model.to(device).eval()


def is_reward_model(folder: Path) -> bool:
    """Whether the folder holds a reward model of ours (its normaliser is in the config)."""
    require_model_folder(folder)
    return '"score_std"' in (folder / "config.json").read_text(encoding="utf-8")


def build_actor_critic(
    lm: PreTrainedModel, *, reward_model: RewardModel | None, separate: bool
) -> ActorCritic:
    """A policy with a value function that starts at zero or at the reward model's score.

    From a reward model, with its trunk (`separate`), the value at a response's end token is its
    normalised score at step 0. Without a reward model a separate trunk is a copy of the policy's.
    """
    hidden_size = lm.get_input_embeddings().weight.shape[1]
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
    """Write the value head (and its trunk, where it has one) beside the policy's weights."""
    tensors = {f"head.{name}": value for name, value in model.value_head.state_dict().items()}
    if model.value_trunk is not None:
        tensors |= {f"trunk.{key}": value for key, value in model.value_trunk.state_dict().items()}
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / VALUE_HEAD)


def load_value_function(model: ActorCritic, folder: Path) -> None:
    """Read back what `save_value_function` wrote; the shapes must agree."""
    tensors = load_file(folder / VALUE_HEAD)
    head = {key[5:]: value for key, value in tensors.items() if key.startswith("head.")}
    trunk = {key[6:]: value for key, value in tensors.items() if key.startswith("trunk.")}
    model.value_head.load_state_dict(head)
    if (model.value_trunk is not None) != bool(trunk):
        kinds = {True: "separate", False: "shared"}
        raise ModelFolderError(
            f"{folder / VALUE_HEAD}: expected a {kinds[not trunk]} value model, "
            f"found a {kinds[bool(trunk)]} one"
        )
    if model.value_trunk is not None:
        model.value_trunk.load_state_dict(trunk)
