"""How well a reward model agrees with labels and with the gold score, on pairs it never trained on.

A gap is the raw score of chosen minus that of rejected: the log-odds that the model gives to the
label (for an ensemble, the mean over its members: their spread says nothing about a label). Ties
have no right order, so they are excluded.
"""

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.support_desk.requests import parse_request
from data.support_desk.rubric import score_response
from preferences.records import Preference
from rlhf.calibration import (
    confidence_bins,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
)
from rlhf.classifiers import Classifier, load_encoder
from rlhf.compute import HOST, Compute
from rlhf.ensembles import load_scorer, members_of
from rlhf.frozen import freeze
from rlhf.grouped_intervals import grouped_proportion
from rlhf.intervals import Interval
from rlhf.model_folders import is_reward_model
from rlhf.positions import table_of_positions
from rlhf.reward_models import RewardModel
from rlhf.scoring import Encoder, score_rows
from tasks.running.progress import Progress, say_left_out

STRENGTHS = 4
"""Grades of a label, from negligibly (margin 0) to significantly better (margin 1)."""


def measure(
    model: RewardModel,
    encoder: Encoder,
    fresh: Sequence[Preference],
    heldout: Sequence[Preference],
    compute: Compute,
    *,
    progress: Progress,
) -> tuple[dict[str, Any], list[float]]:
    """Metrics on held-out pairs (`fresh`: those of this round), and the gaps of all of them.

    `progress` counts as many passes as `passes` says.
    """
    older = [row for row in heldout if row.round != (fresh[0].round if fresh else None)]
    decided = [row for row in heldout if not row.is_tie]
    gaps = label_gaps(model, encoder, decided, compute)
    progress.step()
    accuracies = []
    for rows in (fresh, older):
        accuracies.append(gold_accuracy(model, encoder, rows, compute))
        progress.step()
    longer = [float(len(row.chosen) - len(row.rejected)) for row in decided]
    metrics = {
        "accuracy_after": accuracies[0],
        "accuracy_older": accuracies[1],
        "heldout_accuracy": statistics.fmean(hits(gaps)) if gaps else None,
        "longer_wins": _longer_wins(fresh),
        "ece": expected_calibration_error(gaps) if gaps else None,
        "nll": negative_log_likelihood(gaps) if gaps else None,
        "labels": {
            "accuracy": _share(gaps, decided),
            "longer_wins": _share(longer, decided),
            **{
                f"strength_{grade}": _share(*part) for grade, part in _graded(decided, gaps).items()
            },
        },
        "score_mean": model.mean,
        "score_std": model.std,
    }
    if len(members_of(model)) > 1:
        metrics["disagreement"] = _disagreement(model, encoder, heldout, compute)
        progress.step()
    return metrics, gaps


def asked(
    model: RewardModel, encoder: Encoder, rows: Sequence[Preference], max_tokens: int
) -> list[Preference]:
    """Pairs without a side of more than `max_tokens`; says how many others there are.

    Of a longer one it is not known that the model can read it.
    """
    max_tokens = most_tokens(model, max_tokens)
    kept = _short(encoder, rows, max_tokens)
    limit = f"a side of more than {max_tokens} tokens (reward.max_tokens, or all that it can read)"
    say_left_out(len(rows) - len(kept), len(rows), "pairs to ask the reward model about", limit)
    return kept


def most_tokens(model: RewardModel, max_tokens: int) -> int:
    """Tokens of the longest row that a model is asked about: as many, if it can read them.

    One that was brought along may have fewer positions than `reward.max_tokens`.
    """
    if isinstance(model, Classifier):
        longest = model.longest
    else:
        longest = table_of_positions(model.classifier)
    return max_tokens if longest is None else min(max_tokens, longest)


def _short(encoder: Encoder, rows: Sequence[Preference], max_tokens: int) -> list[Preference]:
    sides = zip(_chosen(encoder, rows), _rejected(encoder, rows), strict=True)
    longest = [max(len(chosen), len(rejected)) for chosen, rejected in sides]
    return [row for row, length in zip(rows, longest, strict=True) if length <= max_tokens]


def accuracy_before(
    start: Path, fresh: Sequence[Preference], max_tokens: int, compute: Compute
) -> dict[str, float] | None:
    """What the earlier round's reward model makes of fresh labels; it is gone before training."""
    if not is_reward_model(start):
        return None
    scorer, encoder = freeze(load_scorer(start, HOST), compute), load_encoder(start)
    short = _short(encoder, fresh, most_tokens(scorer, max_tokens))
    return gold_accuracy(scorer, encoder, short, compute)


def passes(model: RewardModel) -> int:
    """How often `measure` has the model score pairs."""
    return 4 if len(members_of(model)) > 1 else 3


def gold_accuracy(
    model: RewardModel, encoder: Encoder, rows: Sequence[Preference], compute: Compute
) -> dict[str, float] | None:
    """How often the model orders a pair as the gold score does, or as its label without one."""
    rows = [row for row in rows if _gold_sign(row) != 0]
    gaps = label_gaps(model, encoder, rows, compute)
    return _share([gap * _gold_sign(row) for gap, row in zip(gaps, rows, strict=True)], rows)


def label_gaps(
    model: RewardModel, encoder: Encoder, rows: Sequence[Preference], compute: Compute
) -> list[float]:
    """Raw score of chosen minus rejected, the log-odds that the model gives the label."""
    if not rows:
        return []
    gaps = [_member_gaps(member, encoder, rows, compute) for member in members_of(model)]
    return [statistics.fmean(row) for row in zip(*gaps, strict=True)]


def _member_gaps(
    model: RewardModel, encoder: Encoder, rows: Sequence[Preference], compute: Compute
) -> list[float]:
    encoded = _chosen(encoder, rows) + _rejected(encoder, rows)
    scores = score_rows(model, encoded, pad_id=encoder.pad_id, compute=compute)
    half = len(rows)
    return [(scores[i] - scores[half + i]) * model.std for i in range(half)]


def _chosen(encoder: Encoder, rows: Sequence[Preference]) -> list[list[int]]:
    return [encoder.encode(row.prompt, row.chosen, finished=row.chosen_finished) for row in rows]


def _rejected(encoder: Encoder, rows: Sequence[Preference]) -> list[list[int]]:
    return [
        encoder.encode(row.prompt, row.rejected, finished=row.rejected_finished) for row in rows
    ]


def _disagreement(
    model: RewardModel, encoder: Encoder, rows: Sequence[Preference], compute: Compute
) -> float | None:
    """Mean standard deviation, over the members, of the normalised score of a chosen response."""
    if not rows:
        return None
    encoded = _chosen(encoder, rows)
    scores = [
        score_rows(member, encoded, pad_id=encoder.pad_id, compute=compute)
        for member in members_of(model)
    ]
    return statistics.fmean(statistics.pstdev(row) for row in zip(*scores, strict=True))


def write_reliability(path: Path, gaps: Sequence[float], heldout: Sequence[Preference]) -> None:
    """The reliability plot as CSV: accuracy, with its interval, by the model's confidence.

    Args:
        path: where to write.
        gaps: of the held-out pairs without ties, from `measure`.
        heldout: all held-out pairs.
    """
    right, decided = hits(gaps), [row for row in heldout if not row.is_tie]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["confidence", "accuracy", "low", "high", "pairs"])
        bins = zip(reliability(gaps), confidence_bins(gaps), strict=True)
        for (confidence, accuracy, pairs), places in bins:
            prompts = [decided[place].prompt_id for place in places]
            interval = grouped_proportion([right[place] for place in places], prompts)
            row = (confidence, accuracy, interval.low, interval.high)
            writer.writerow([*(f"{value:.6f}" for value in row), pairs])


def hits(gaps: Sequence[float]) -> list[float]:
    """1 for a pair in the right order, ½ for equal scores, else 0."""
    return [1.0 if gap > 0 else 0.5 if gap == 0 else 0.0 for gap in gaps]


def right_order(gaps: Sequence[float], rows: Sequence[Preference]) -> Interval | None:
    """The share of pairs in the right order; its interval knows that pairs may share a prompt."""
    return grouped_proportion(hits(gaps), [row.prompt_id for row in rows]) if gaps else None


def _share(gaps: Sequence[float], rows: Sequence[Preference]) -> dict[str, float] | None:
    share = right_order(gaps, rows)
    return None if share is None else share.as_dict()


def _graded(
    rows: Sequence[Preference], gaps: Sequence[float]
) -> dict[int, tuple[list[float], list[Preference]]]:
    """Gaps and rows by strength of the label; empty where no strengths were given.

    A margin above 1 is a difference of scores, and so are the others of its source.
    """
    scored = {row.source for row in rows if row.margin > 1}
    graded: dict[int, tuple[list[float], list[Preference]]] = {}
    for gap, row in zip(gaps, rows, strict=True):
        if row.source in scored:
            continue
        own = graded.setdefault(1 + round(row.margin * (STRENGTHS - 1)), ([], []))
        own[0].append(gap)
        own[1].append(row)
    return dict(sorted(graded.items())) if len(graded) > 1 else {}


def _gold_sign(row: Preference) -> int:
    """1 where gold agrees with the label, -1 where it disagrees, 0 for equal gold.

    Without a rubric the label stands for gold: 1, and 0 for a tie.
    """
    if not isinstance(row.prompt, str) or parse_request(row.prompt) is None:
        return 0 if row.is_tie else 1
    chosen = score_response(row.prompt, row.chosen, finished=row.chosen_finished)
    rejected = score_response(row.prompt, row.rejected, finished=row.rejected_finished)
    return (chosen > rejected) - (chosen < rejected)


def _longer_wins(rows: Sequence[Preference]) -> float | None:
    """Accuracy of the rule "the longer response wins"; ties count half."""
    rows = [row for row in rows if _gold_sign(row) != 0]
    gaps = [float((len(row.chosen) - len(row.rejected)) * _gold_sign(row)) for row in rows]
    return statistics.fmean(hits(gaps)) if gaps else None
