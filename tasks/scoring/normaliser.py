"""The scale of a reward model's scores: SFT's own responses have mean 0 and deviation 1."""

from collections.abc import Sequence
from pathlib import Path

import torch

from preferences.loading import load_comparisons
from rlhf.compute import Compute
from rlhf.ensembles import RewardEnsemble, members_of
from rlhf.reward import fit_normaliser
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder, score_batches, scores_in_order
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress, track_batches
from tasks.running.stage import Stage
from tasks.running.staging import model_hash


def normalise(stage: Stage, model: RewardModel, encoder: Encoder, compute: Compute) -> None:
    """Fit the normaliser on SFT's own responses among the round's pairs.

    Of an ensemble first that of each member, then that of their joint score.

    Raises:
        StageEnd: there are fewer than two, or all of them have one score.
    """
    rows = _reference_responses(stage, encoder)
    members = members_of(model)
    progress = Progress(stage.name, len(members) * len(rows), "responses")
    scores = []
    for member in members:
        member.set_normaliser(0.0, 1.0)
        batches = score_batches(member, rows, pad_id=encoder.pad_id, compute=compute)
        raw = scores_in_order(track_batches(batches, progress, len(rows)), len(rows))
        _fit(member, raw)
        scores.append(member.normalised(torch.tensor(raw)))
    progress.close()
    if isinstance(model, RewardEnsemble):
        model.set_normaliser(0.0, 1.0)
        _fit(model, model.joint(torch.stack(scores)).tolist())


def _fit(model: RewardModel, raw: Sequence[float]) -> None:
    try:
        fit_normaliser(model, raw)
    except ValueError as error:
        raise StageEnd("stopped", f"{error}; look at the labels and reward.optimiser") from None


def _reference_responses(stage: Stage, encoder: Encoder) -> list[list[int]]:
    """Token ids of SFT's own responses, each with its prompt, in the order of the pairs."""
    sft = model_hash(Path("models/sft"))
    rows = [
        encoder.encode(row.prompt, response, finished=finished)
        for row in load_comparisons(Path(f"data/rounds/{stage.round_key}/comparisons.jsonl"))
        for response, finished, policy in (
            (row.response_a, row.finished_a, row.policy_a),
            (row.response_b, row.finished_b, row.policy_b),
        )
        if policy == sft
    ]
    if len(rows) < 2:
        raise StageEnd(
            "bad_input",
            f"{len(rows)} of the round's responses are by SFT, but the score normaliser "
            "needs at least 2: raise sample.against_sft",
        )
    return rows
