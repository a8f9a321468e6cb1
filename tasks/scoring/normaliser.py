"""The scale of a reward model's scores: SFT's own responses have mean 0 and deviation 1."""

from pathlib import Path

from preferences.loading import load_comparisons
from rlhf.compute import Compute
from rlhf.reward import fit_normaliser
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder, score_batches, scores_in_order
from tasks.running.outcome import StageEnd
from tasks.running.progress import Progress, track_batches
from tasks.running.stage import Stage
from tasks.running.staging import model_hash


def normalise(stage: Stage, model: RewardModel, encoder: Encoder, compute: Compute) -> None:
    """Fit the normaliser on SFT's own responses among the round's pairs.

    Raises:
        StageEnd: there are fewer than two, or all of them have one score.
    """
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
    model.set_normaliser(0.0, 1.0)
    progress = Progress(stage.name, len(rows), "responses")
    batches = score_batches(model, rows, pad_id=encoder.pad_id, compute=compute)
    raw = scores_in_order(track_batches(batches, progress, len(rows)), len(rows))
    progress.close()
    try:
        fit_normaliser(model, raw)
    except ValueError as error:
        raise StageEnd("stopped", f"{error}; look at the labels and reward.optimiser") from None
