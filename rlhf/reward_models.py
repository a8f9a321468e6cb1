"""Reward models: a trunk, a head with one label, and a normaliser of the scores.

On disk a sequence classifier in Hugging Face format, which any library can load; the normaliser
travels in `config.json` as `score_mean` and `score_std`.
"""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from rlhf.compute import in_float32, sent
from rlhf.logits import sequence_hidden
from rlhf.masked import last_token_index
from rlhf.model_folders import ModelFolderError, loading, require_model_folder
from rlhf.models import load_weights
from rlhf.reward_heads import classifier_class, head_name
from rlhf.shapes import AttentionMask, PerSequence, TokenIds


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

    @property
    def normaliser(self) -> tuple[float, float]:
        """What `set_normaliser` has stored: (0, 1) before it is fitted."""
        return self.mean, self.std

    def set_normaliser(self, mean: float, std: float) -> None:
        """Store the normaliser; raises ValueError for a spread that is not positive."""
        require_spread(std)
        self.classifier.config.score_mean = mean
        self.classifier.config.score_std = std

    @property
    def head(self) -> nn.Linear:
        """The scalar head, (1, hidden)."""
        return cast(nn.Linear, self.classifier.get_submodule(head_name(self.classifier)))

    def raw_scores(
        self, ids: TokenIds, mask: AttentionMask, *, packing: bool = False
    ) -> PerSequence:
        """Scores before normalisation, read at each row's last real token.

        A row without a real token raises `EmptyMaskError`.
        """
        return self.head_outputs(self.last_hidden(ids, mask, packing=packing)).squeeze(-1)

    def last_hidden(self, ids: TokenIds, mask: AttentionMask, *, packing: bool = False) -> Tensor:
        """Hidden states (batch, hidden) of each row's last real token."""
        mask = mask.cpu()
        rows, last = torch.arange(len(mask)), last_token_index(mask)
        read = torch.zeros_like(mask)
        read[rows, last] = True
        hidden = sequence_hidden(self.classifier.base_model, ids, mask, read=read, packing=packing)
        row, column = (sent(place, ids.device) for place in (rows, last))
        return hidden[row, column]

    def head_outputs(self, hidden: Tensor) -> Tensor:
        """What the head gives in float32 for hidden states (..., hidden)."""
        with in_float32(hidden.device):
            return cast(Tensor, self.head(hidden.float()))

    def forward(self, ids: TokenIds, mask: AttentionMask, *, packing: bool = False) -> PerSequence:
        """Normalised scores; padding on either side changes nothing."""
        return self.normalised(self.raw_scores(ids, mask, packing=packing))

    def normalised(self, raw: Tensor) -> Tensor:
        """Scores of any shape on the scale where reference responses have mean 0, deviation 1."""
        return (raw - self.mean) / self.std


def require_spread(std: float) -> None:
    """Raise ValueError for a deviation of reference responses' scores that is not positive."""
    if not std > 0:
        raise ValueError(f"the reward model gives every reference response one score (std {std})")


def load_reward_model(
    folder: Path, device: torch.device, generator: torch.Generator
) -> RewardModel:
    """A reward model from its folder, ours or another's, or a fresh one on a causal model's trunk.

    A folder without a head gets a fresh one, drawn from N(0, 1/sqrt(hidden + 1)) (Stiennon et al.
    2020), without a bias. A head that is there stays as it is.
    """
    require_model_folder(folder)
    with loading(folder):
        kind = classifier_class(AutoConfig.from_pretrained(folder, trust_remote_code=False))
    model, missing = load_weights(kind, folder, num_labels=1)
    try:
        head = head_name(model)
    except ValueError as error:
        raise ModelFolderError(f"{folder}: {error}") from None
    lacking = [name for name in missing if not name.startswith(f"{head}.")]
    if lacking:
        raise ModelFolderError(f"{folder}: weights are missing: {', '.join(lacking)}")
    reward_model = RewardModel(model)
    if missing:
        weight = reward_model.head.weight
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(noise / (weight.shape[1] + 1) ** 0.5)
    return reward_model.to(device).eval()
