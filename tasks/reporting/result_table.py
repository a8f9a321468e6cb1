"""The short table that ends `make repro`, for a terminal of 80 columns."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.reporting.caveats import caveats
from tasks.reporting.without_gold import baselines, has_gold, heldout_loss, judge_words
from tasks.running.amounts import amount

HEADER = (
    ("", "gold", "win rate vs SFT", "KL", "reward model on the"),
    ("", "score", "(95 % interval)", "nats", "newest pairs"),
)
WIDTHS = (10, 6, 22, 6, 22)
NO_GOLD_HEADER = (
    ("", "proxy", "win rate vs SFT", "KL", "reward model on the"),
    ("", "SFT -> policy", "(95 % interval)", "nats", "held-out labels"),
)
NO_GOLD_WIDTHS = (10, 14, 20, 6, 20)
"""Where there is no gold score: what the reward model says, and what labels say of it."""
NONE = "-"


def result_table(summary: Mapping[str, Any]) -> str:
    """Round by round: gold score, win rate, KL, reward-model accuracy before -> after.

    Without gold, the proxy of SFT and of the policy, and the accuracy on held-out labels. Anything
    that contradicts the headline numbers comes first.
    """
    policies, test = summary["policies"], summary["test"]
    rewards = {model["round"]: model for model in summary["reward_models"]}
    gold = has_gold(policies)
    widths, header, row_of = WIDTHS, HEADER, _row
    if not gold:
        widths, header, row_of = NO_GOLD_WIDTHS, NO_GOLD_HEADER, _row_without_gold
    rows = [row_of(p["name"], p, rewards.get(p["name"])) for p in policies]
    tested = [row_of(f"test ({test['policy']})", test, None)] if test else []
    columns = [
        max(width, *map(len, cells))
        for width, cells in zip(widths, zip(*header, *rows, *tested, strict=True), strict=True)
    ]
    lines = [line for sentence in caveats(summary) for line in _note(sentence)]
    lines += [_line(row, columns) for row in header]
    rule = "-" * len(_line(["x" * width for width in columns], columns))
    lines += [rule, *(_line(row, columns) for row in rows)]
    for row in tested:
        lines += [rule, _line(row, columns)]
    if sentence := heldout_loss(summary):
        lines += textwrap.wrap(sentence, width=80)
    if not gold:
        lines += baselines(summary["reward_models"])
    if words := judge_words(policies):
        sentence = f"Win rates are judged by {words}: this data has no gold score."
        lines += textwrap.wrap(sentence, width=80)
    return "\n".join(lines) + "\n"


def time_lines(seconds: Mapping[str, Any], *, longest: int = 5) -> str:
    """The total time, then the slowest stages, then the rest; and what earlier runs had done."""
    stages = sorted(seconds["stages"].items(), key=lambda item: -item[1])
    parts = [f"{name} {duration(took)}" for name, took in stages[:longest]]
    if rest := stages[longest:]:
        parts.append(f"{amount(len(rest), 'other')} {duration(sum(took for _, took in rest))}")
    # Lines break between parts only, not between a number and its unit.
    listed = ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts) or "nothing ran"
    sentences = [f"Time: {duration(seconds['total'])} ({listed})"]
    if earlier := seconds.get("earlier"):
        words = re.sub(
            r"(?<=\d) (?=s|min)", "\N{NO-BREAK SPACE}", earlier_words(seconds["total"], earlier)
        )
        sentences.append(f"      {words}")
    filled = [
        textwrap.fill(text, width=80, subsequent_indent="      ", break_on_hyphens=False)
        for text in sentences
    ]
    return "\n".join(filled).replace("\N{NO-BREAK SPACE}", " ") + "\n"


def memory_line(peaks: Mapping[str, int]) -> str:
    """The stage that took most memory of those that ran; empty where none did.

    Args:
        peaks: bytes that each stage's process held at its most.
    """
    if not peaks:
        return ""
    stage, most = max(peaks.items(), key=lambda item: item[1])
    return f"Memory: {most / 1e9:.1f} GB at the most ({stage})\n"


def gpu_line(machine: Mapping[str, Any]) -> str:
    """The GPUs that stages computed on, whose bits are not a CPU's; empty where none did."""
    if not (gpus := machine.get("gpus")):
        return ""
    return f"GPU: {', '.join(gpus)} (its results differ from a CPU's in their bytes)\n"


def earlier_words(total: float, earlier: Mapping[str, float]) -> str:
    """What this run found done, how long that took in its time, and the sum of both."""
    stages = amount(len(earlier), "stage")
    took = sum(earlier.values())
    return (
        f"not counting {stages} that earlier runs had done in {duration(took)}: "
        f"{'with it' if len(earlier) == 1 else 'with them'} {duration(total + took)}"
    )


def duration(seconds: float) -> str:
    """`7.4 s` below a minute, else `1:32 min`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{seconds:.1f} s"


def _note(sentence: str) -> list[str]:
    return textwrap.wrap(f"Note: {sentence}", width=80, subsequent_indent="      ")


def _row(
    name: str, policy: Mapping[str, Any], reward: Mapping[str, Any] | None
) -> tuple[str, str, str, str, str]:
    return (
        name,
        _mean(policy.get("gold"), 2),
        _interval(policy.get("win_rate_vs_sft")),
        _mean(policy.get("kl"), 2),
        _before_after(reward),
    )


def _row_without_gold(
    name: str, policy: Mapping[str, Any], reward: Mapping[str, Any] | None
) -> tuple[str, str, str, str, str]:
    proxy, of_sft = policy.get("proxy"), policy.get("proxy_sft")
    change = _mean(proxy, 2) if proxy and proxy["mean"] is not None else NONE
    return (
        name,
        f"{_mean(of_sft, 2)} -> {change}" if of_sft else change,
        _interval(policy.get("win_rate_vs_sft")),
        _mean(policy.get("kl"), 2),
        _interval(reward.get("label_accuracy")) if reward else NONE,
    )


def _before_after(reward: Mapping[str, Any] | None) -> str:
    if reward is None or reward.get("accuracy_after") is None:
        return NONE  # Also of a round that trains no reward model.
    after = _mean(reward.get("accuracy_after"), 3)
    if reward.get("accuracy_before") is None:
        return f"first: {after}"
    return f"{_mean(reward['accuracy_before'], 3)} -> {after}"


def _mean(estimate: Mapping[str, float] | None, digits: int) -> str:
    return NONE if estimate is None else f"{estimate['mean']:z.{digits}f}"


def _interval(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return NONE
    mean = _mean(estimate, 3)
    if "low" not in estimate or "high" not in estimate:
        return mean
    return f"{mean} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    text = f"{first[0]:<{first[1]}}" + "".join(f"  {cell:>{width}}" for cell, width in rest)
    return text.rstrip()
