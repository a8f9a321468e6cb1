"""Renders the report: one HTML page without network access, scripts or other files."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.params.changed import ChangedParam
from tasks.reporting import best_of_n
from tasks.reporting.against_kl import gold_against_kl
from tasks.reporting.annotators import AnnotatorRow, FormedRow
from tasks.reporting.calibration import error_by_chance
from tasks.reporting.caveats import caveats, contradiction, rounds_without_gain
from tasks.reporting.charts import (
    SMALL,
    Mark,
    before_after,
    interval_bar,
    line_panel,
    reliability_panel,
)
from tasks.reporting.data import ConfidenceBin, Curves, GateVerdict, ModelNode, Sample, Source
from tasks.reporting.lineage import lineage_drawing, lineage_rows
from tasks.reporting.without_gold import heldout_loss, judge_words, undistinguished

LONGEST_TEXT = 2000
"""Most characters shown of a prompt or response."""
PANELS = (
    ("objective/score", "Reward model's score", "on the policy's own samples, in the reward "
     "model's normalised units; each round has a reward model of its own"),
    ("objective/gold", "Gold score", "the rubric, which training never sees; "
     "dots: held-out prompts with 95 % intervals"),
    ("objective/kl", "KL to SFT", "nats per response; dots: held-out prompts"),
    ("objective/entropy", "Entropy", "nats per token of the policy"),
    ("policy/clip_fraction", "Clip fraction", "share of tokens whose ratio was clipped"),
    ("value/explained_variance", "Explained variance", "how much of the returns the value "
     "head predicts; 1 is perfect"),
)  # fmt: skip
RULED = ("Score", "by ppo.rewards, on the policy's own samples; no reward model takes part")
"""Title and note of the first panel where no reward model scores."""
MIXED = ("Score", "by ppo.rewards, on the policy's own samples: the weighted sum of the round's "
         "reward model and of rules")  # fmt: skip
"""The same where it does beside rules."""
BESIDE = frozenset(
    f"ppo.rewards.{name}" for name in ("length", "relevance", "format", "sentiment", "function")
)
"""What gives a rule a part of the score, where it is neither 0 nor null."""
LOSSES = (
    ("base", "Pre-training loss", "nats per token"),
    ("sft", "SFT loss", "nats per token"),
    ("reward", "Reward model loss", "per pair"),
)

MEMBERS = "member_2/loss"
"""A column of the history of an ensemble, in which the first member's has no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything that the page shows."""

    results: Mapping[str, Any]
    """From `tasks.reporting.summary.build_results`."""
    changed: Sequence[ChangedParam]
    final: str
    trained_in: Sequence[str]
    """The rounds that the weights of the final policy went through."""
    curves: Curves
    losses: Mapping[str, Curves]
    verdicts: Sequence[GateVerdict]
    reliability: Mapping[str, Sequence[ConfidenceBin]]
    samples: Sequence[Sample]
    samples_total: int
    lineage: Sequence[ModelNode]
    labels: Mapping[str, tuple[Source, int]]
    annotators: Sequence[AnnotatorRow]
    """Of the rounds that formed the final policy."""
    formed: Sequence[FormedRow]
    """What else the final policy comes from, and the judgments by their kind."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart with its heading."""

    title: str
    note: str
    drawing: Markup


def render_page(data: ReportData) -> str:
    """The page as HTML."""
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": visible,
        "number": number,
        "signed": signed,
        "as_json": as_json,
    }
    policies = {policy["name"]: policy for policy in data.results["policies"]}
    return environment.get_template("report.html.j2").render(
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),
        data=data,
        first=policies.get("sft"),
        last=policies.get(data.final),
        test=data.results["test"],
        caveats=caveats(data.results),
        judged_by=judge_words(data.results["policies"]),
        heldout_loss=heldout_loss(data.results),
        undistinguished=undistinguished(data.results["policies"]),
        label_models=[
            model for model in data.results["reward_models"] if model.get("label_accuracy")
        ],
        contradiction=contradiction(data.results),
        no_gain=rounds_without_gain(data.results),
        bar=_win_rate_bar,
        ruled=_ruled(data),
        mixed=_mixed(data),
        gold_kl=gold_against_kl(data.results["policies"]),
        best_of_n=_best_of_n(data.results),
        panels=_panels(data),
        other_panels=_other_panels(data.curves),
        losses=_losses(data.losses),
        ordered_as="gold scores" if any(map(_has_gold, policies.values())) else "labels",
        rewards=_reward_drawing(data.results["reward_models"]),
        reliability=_reliability(data),
        reward_models=data.results["reward_models"],
        chance={key: error_by_chance(bins) for key, bins in data.reliability.items()},
        policies=data.results["policies"],
        lineage=lineage_drawing(data.lineage, data.labels) if data.lineage else None,
        lineage_rows=lineage_rows(data.lineage),
        rounds_judged=[
            key for key in data.labels if any(row.by_round[key] for row in data.annotators)
        ],
    )


def visible(text: str) -> str:
    """The first `LONGEST_TEXT` characters of `text`, with control characters as symbols."""
    shown = text[:LONGEST_TEXT]
    shown = re.sub(r"[\x00-\x08\x0b-\x1f]", lambda m: chr(0x2400 + ord(m.group())), shown)
    shown = re.sub(r"[\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", shown)
    left = len(text) - LONGEST_TEXT
    return f"{shown} … ({left:,} more characters)" if left > 0 else shown


def number(value: float | None, digits: int = 2) -> str:
    """With a fixed number of digits; a dash for a missing value."""
    return "–" if value is None else f"{value:z.{digits}f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float, digits: int = 2) -> str:
    """With its sign, for a difference."""
    return f"{value:+z.{digits}f}".replace("-", "\N{MINUS SIGN}")


def as_json(value: object) -> str:
    """A parameter's value as JSON, which is also valid YAML; text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _has_gold(policy: Mapping[str, Any]) -> bool:
    return policy["gold"] is not None


def _ruled(data: ReportData) -> bool:
    """Whether rules or a function alone score the responses, and no reward model."""
    return any(one.key == "ppo.rewards.learned" and not one.value for one in data.changed)


def _mixed(data: ReportData) -> bool:
    """Whether rules or a function score the responses beside a reward model."""
    return not _ruled(data) and any(one.key in BESIDE and one.value for one in data.changed)


def _win_rate_bar(estimate: Mapping[str, float]) -> Markup:
    low, high = estimate.get("low", estimate["mean"]), estimate.get("high", estimate["mean"])
    return interval_bar(estimate["mean"], low, high, (0.0, 1.0))


def _best_of_n(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the page says of best-of-n, None until it has been measured."""
    found = results["best_of_n"]
    return found and {
        "found": found,
        "worth": best_of_n.worth(found),
        "rows": best_of_n.table(results),
        "charts": best_of_n.charts(results),
    }


def _panels(data: ReportData) -> list[Panel]:
    panels = []
    for metric, title, note in PANELS:
        curve = data.curves.by_metric.get(metric)
        if curve is not None and curve.points:
            marks = _marks(data, metric)
            if metric == "objective/score" and (_ruled(data) or _mixed(data)):
                title, note = RULED if _ruled(data) else MIXED
            share = metric == "policy/clip_fraction"
            drawing = line_panel(data.curves, curve, title, marks, from_zero=share)
            panels.append(Panel(title, note, drawing))
    return panels


def _other_panels(curves: Curves) -> list[Panel]:
    """A small chart of every PPO metric that `PANELS` does not name, in the file's order."""
    named = {metric for metric, _, _ in PANELS}
    return [
        Panel(metric, "", line_panel(curves, curve, metric, size=SMALL))
        for metric, curve in curves.by_metric.items()
        if metric not in named
    ]


def _losses(losses: Mapping[str, Curves]) -> list[Panel]:
    panels = []
    for stage, title, note in LOSSES:
        curves = losses[stage]
        loss = curves.by_metric.get("loss")
        if loss is not None:
            if MEMBERS in curves.by_metric:
                note = f"{note}; members of the ensemble one after the other"
            panels.append(Panel(title, note, line_panel(curves, loss, title)))
    return panels


def _reliability(data: ReportData) -> list[Panel]:
    panels = []
    for key, bins in data.reliability.items():
        pairs = sum(one.pairs for one in bins)
        title = f"Accuracy by confidence, {key}"
        panels.append(Panel(title, f"{pairs} held-out pairs", reliability_panel(bins, title)))
    return panels


def _marks(data: ReportData, metric: str) -> list[Mark]:
    """Held-out measurements at the end of each round, for the two metrics that have them."""
    field = {"objective/gold": "gold", "objective/kl": "kl"}.get(metric)
    if field is None:
        return []
    ends = {key: end for key, _, end in data.curves.spans} | {"sft": 0.0}
    marks = []
    for policy in data.results["policies"]:
        estimate = policy[field]
        if estimate is not None and policy["name"] in ends:
            label = f"{policy['name']}, held-out prompts"
            marks.append(_mark(ends[policy["name"]], estimate, label))
    return marks


def _mark(step: float, estimate: Mapping[str, float], label: str) -> Mark:
    mean = estimate["mean"]
    low, high = estimate.get("low", mean), estimate.get("high", mean)
    return Mark(step, mean, low, high, f"{label}: {mean:.3f} (from {low:.3f} to {high:.3f})")


def _reward_drawing(models: Sequence[Mapping[str, Any]]) -> Markup | None:
    rows = []
    for model in models:
        before, after = model["accuracy_before"], model["accuracy_after"]
        if after is not None:
            old = before and _mark(0.0, before, "before")
            rows.append((model["round"], old, _mark(0.0, after, "after")))
    return before_after(rows) if rows else None
