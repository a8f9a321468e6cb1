"""Several reward models as one scorer that distrusts what they disagree about.

    score = (mean_i s_i - k std_i s_i - m) / d

s_i is the normalised score of member i and std the deviation over the members (Coste et al. 2024,
with the deviation in place of the variance): a response that only some members like is worth less,
so a policy gains less by finding what one of them got wrong. m and d bring reference responses to
mean 0 and deviation 1, as those of a single model: KL and penalties weigh as much. On disk the
first member is the folder itself, the others are hub folders in it, `member_2`, `member_3` and so
on.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from rlhf.classifiers import load_classifier, reads_text
from rlhf.model_folders import is_reward_model, save_model
from rlhf.reward_models import RewardModel, load_reward_model, require_spread
from rlhf.shapes import AttentionMask, PerSequence, TokenIds

NOT_FITTED = {"mean": 0.0, "std": 1.0}
"""m and d of an ensemble whose folder has none."""


class RewardEnsemble(RewardModel):
    """A scorer of two members or more, usable wherever a reward model is.

    Head and trunk (what a value function starts from) are the first member's, and so are `mean` and
    `std`, on the scale of the joint score.
    """

    def __init__(self, members: Sequence[RewardModel], k: float):
        """Join members; `k` deviations are subtracted from their mean."""
        super().__init__(members[0].classifier)
        self.others = nn.ModuleList(members[1:])
        self.k = k

    @property
    def normaliser(self) -> tuple[float, float]:
        """What `set_normaliser` has stored, `(m, d)`; (0, 1) before."""
        config = self.classifier.config
        mean, std = (getattr(config, f"ensemble_{n}", usual) for n, usual in NOT_FITTED.items())
        return float(mean), float(std)

    def set_normaliser(self, mean: float, std: float) -> None:
        """Store mean and deviation of reference responses' joint scores as m and d.

        Raises:
            ValueError: a deviation that is not positive.
        """
        require_spread(std)
        self.classifier.config.ensemble_mean = mean
        self.classifier.config.ensemble_std = std

    @property
    def mean(self) -> float:
        """The raw score of the first member that is 0 on the scale of the joint score."""
        return super().mean + super().std * self.normaliser[0]

    @property
    def std(self) -> float:
        """How much of the first member's raw score is 1 on the scale of the joint score."""
        return super().std * self.normaliser[1]

    @property
    def members(self) -> list[RewardModel]:
        """Every member as a reward model of its own."""
        others = [member for member in self.others if isinstance(member, RewardModel)]
        return [RewardModel(self.classifier), *others]

    def forward(self, ids: TokenIds, mask: AttentionMask, *, packing: bool = False) -> PerSequence:
        """Mean of the members' normalised scores less `k` times their deviation, normalised."""
        scores = torch.stack([member(ids, mask, packing=packing) for member in self.members])
        mean, std = self.normaliser
        return (self.joint(scores) - mean) / std

    def joint(self, scores: Tensor) -> Tensor:
        """Joint scores (rows,) before m and d, of the members' normalised ones (members, rows)."""
        return scores.mean(dim=0) - self.k * scores.std(dim=0, unbiased=False)


def members_of(model: RewardModel) -> list[RewardModel]:
    """The reward models behind a score: several of an ensemble, else the model itself."""
    return model.members if isinstance(model, RewardEnsemble) else [model]


def join(members: Sequence[RewardModel], k: float) -> RewardModel:
    """One scorer; a single member stays the plain reward model that it is."""
    return RewardEnsemble(members, k).eval() if len(members) > 1 else members[0]


def load_scorer(folder: Path, device: torch.device) -> RewardModel:
    """The reward model of a folder, or the ensemble where the folder holds further members.

    A classifier that reads text takes the ids of its own tokenizer (`rlhf.classifiers`).
    """
    if reads_text(folder):
        return load_classifier(folder, device)
    members = load_members(folder, device)
    return join(members, float(getattr(members[0].classifier.config, "ensemble_k", 0.0)))


def load_members(folder: Path, device: torch.device) -> list[RewardModel]:
    """The members of a folder in their order; one for a plain reward model.

    Raises:
        ModelFolderError: the folder, or that of a member, holds no model.
    """
    places = member_folders(folder)
    return [load_reward_model(place, device, torch.Generator()) for place in places]


def save_members(
    model: RewardModel,
    folder: Path,
    stored: Literal["float32", "bfloat16"] = "float32",
    changed: Collection[str] = (),
) -> None:
    """Write the members after the first, as `save_model` does; `folder` is that of the first."""
    for number, member in enumerate(members_of(model)[1:], start=1):
        save_model(member.classifier, member_folder(folder, number), stored, changed)


def member_folders(folder: Path) -> list[Path]:
    """Where the members of a folder lie, in their order; the first in the folder itself."""
    found = [folder]
    while (further := member_folder(folder, len(found))).exists():
        found.append(further)
    return found


def member_folder(folder: Path, number: int) -> Path:
    """Where member `number`, counted from 0, lies."""
    return folder / f"member_{number + 1}" if number else folder


def starting_members(
    start: Path, fresh: Path, heads: Sequence[torch.Generator], device: torch.device
) -> list[RewardModel]:
    """As many members as there are generators: those of `start`, then new ones on `fresh`.

    Each new one draws a head from its own generator.
    """
    known = load_members(start, device)[: len(heads)] if is_reward_model(start) else []
    return known + [load_reward_model(fresh, device, head) for head in heads[len(known) :]]
