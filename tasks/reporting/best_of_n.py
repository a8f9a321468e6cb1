"""The report's section on best-of-n from SFT: is PPO worth it?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tasks.reporting.against_kl import Reached, against_kl

MEASURES = (
    ("gold", "gold", "Gold against KL"),
    ("win_rate_vs_sft", "win rate", "Win rate against KL"),
    ("proxy", "proxy", "Proxy against KL"),
)
"""Field, name in a chart's labels, title."""


@dataclass(frozen=True, slots=True)
class Row:
    """One n, or the rounds' policies, of the table."""

    name: str
    kl: str
    gold: Sequence[Mapping[str, float] | None]
    """By the reward model of each round, or of each round's policy."""
    win_rate: Mapping[str, float] | None
    """By the final round's reward model, or of its policy; so is the proxy."""
    proxy: Mapping[str, float]


def worth(found: Mapping[str, Any]) -> str:
    """Whether PPO is worth it, in one sentence with the interval of the difference.

    Args:
        found: `best_of_n` of `tasks.reporting.summary.build_results`.
    """
    gain, policy, n = found["gain"], found["policy"], found["samples"]
    verdict = "Undecided"
    if gain["low"] > 0:
        verdict = "Yes"
    elif gain["high"] < 0:
        verdict = "No"
    measure = "gold"
    if found["judge"] != "gold":
        judge = "reward model" if found["judge"] == "reward_model" else "reward"
        verdict = f"{verdict}, as far as the {judge} that both were chosen by can tell"
        measure = "score"
    ppo, best = (_written(found[one]["mean"]) for one in ("ppo", "best"))
    mean, low, high = (_written(gain[end], "+") for end in ("mean", "low", "high"))
    return (
        f"{verdict}: one response of {policy} reaches {measure} {ppo}, the best of {n} of SFT by "
        f"the same reward {best}; the difference is {mean} [{low}, {high}] on {gain['n']} "
        "prompts."
    )


def _written(value: float, sign: str = "") -> str:
    return f"{value:{sign}z.2f}".replace("-", "\N{MINUS SIGN}")


def table(results: Mapping[str, Any]) -> list[Row]:
    """A row for each n, and one of the policies on the same prompts."""
    found = results["best_of_n"]
    rounds, final = found["rounds"], _final(found)
    rows = [
        Row(
            name=str(point["n"]),
            kl=f"≤ {point['kl_bound']:.2f}",
            gold=[entry["curve"][number]["gold"] for entry in rounds],
            win_rate=point["win_rate_vs_sft"],
            proxy=point["proxy"],
        )
        for number, point in enumerate(final["curve"])
    ]
    kl = _kl(results).get(final["round"])
    own = final["policy"]
    golds = [entry["policy"]["gold"] for entry in rounds]
    last = "–" if kl is None else f"{kl['mean']:.2f}"
    return [*rows, Row("PPO", last, golds, own["win_rate_vs_sft"], own["proxy"])]


def charts(results: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Gold, win rate and proxy against KL, each with its title, where they were measured.

    Proxies are those of the final round's reward model alone: each has units of its own.
    """
    found, kl = results["best_of_n"], _kl(results)
    drawn = []
    for field, measure, title in MEASURES:
        rounds = [_final(found)] if field == "proxy" else found["rounds"]
        rounds = [entry for entry in rounds if entry["policy"][field] and entry["round"] in kl]
        if rounds:
            curves = [_curve(entry, field) for entry in rounds]
            policies = [Reached("SFT", {"mean": 0.0}, curves[-1][0].value)]
            policies += [
                Reached(entry["round"], kl[entry["round"]], entry["policy"][field])
                for entry in rounds
            ]
            drawn.append((title, against_kl(title, measure, policies, curves)))
    return drawn


def _final(found: Mapping[str, Any]) -> Mapping[str, Any]:
    final: Mapping[str, Any] = next(
        entry for entry in found["rounds"] if entry["round"] == found["policy"]
    )
    return final


def _kl(results: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    """Round -> the measured KL of its policy."""
    return {policy["name"]: policy["kl"] for policy in results["policies"] if policy["kl"]}


def _curve(entry: Mapping[str, Any], field: str) -> list[Reached]:
    return [
        Reached(f"{entry['round']}, n = {point['n']}", {"mean": point["kl_bound"]}, point[field])
        for point in entry["curve"]
    ]
