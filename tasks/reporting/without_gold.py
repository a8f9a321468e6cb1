"""What a run without gold scores shows in their place: who judged, labels, proxies, baselines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

JUDGES = {
    "reward_model": "the reward model that the policy was trained on, whose score it was made to "
    "raise",
    "rules": "the rules, or the function, that the policy was trained on",
    "mixed_reward": "the reward model and the rules, or the function, that the policy was trained "
    "on, whose weighted sum it was made to raise",
    "label.language_model": "the language model of label.language_model",
    "label.reward_model": "the reward model of label.reward_model",
}
"""`win_rate_judge` of a policy's metrics -> the words for it."""
EVEN = 0.5
MANY = 0.1
"""Share of the prompts above which those without a verdict are worth a note."""


def has_gold(policies: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of them has a gold score, or none has been measured yet."""
    return not policies or any(policy.get("gold") for policy in policies)


def judge_words(policies: Sequence[Mapping[str, Any]]) -> str | None:
    """Who judged the win rates, in words; None where gold did."""
    judges = [policy.get("win_rate_judge") for policy in policies if policy.get("win_rate_vs_sft")]
    return next((JUDGES[judge] for judge in judges if judge in JUDGES), None)


def label_accuracy(
    rewards: Mapping[str, Any], validate: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How often a reward model orders held-out pairs as their labels do, beside two baselines.

    Args:
        rewards: metrics of the stage `reward`.
        validate: metrics of the stage `validate`, which has measured a bag of words.
    """
    labels = rewards.get("labels") or {}
    return {
        "label_accuracy": labels.get("accuracy"),
        "label_longer_wins": labels.get("longer_wins"),
        "bag_of_words": (validate or {}).get("baselines/bag_of_words"),
    }


def undistinguished(policies: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Policy -> a sentence, for each whose win rate without gold may as well be one half."""
    return {
        name: f"{name} is not distinguishable from SFT: its win rate is {_shown(wins)}."
        for name, wins in _win_rates(policies)
        if wins["low"] <= EVEN <= wins["high"]
    }


def worse_than_sft(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each policy whose win rate without gold lies below one half."""
    return [
        f"{name} is worse than SFT: its win rate is {_shown(wins)}."
        for name, wins in _win_rates(policies)
        if wins["high"] < EVEN
    ]


def without_verdict(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each policy about which the judge said nothing on many prompts."""
    found = []
    for name, wins in _win_rates(policies):
        skipped, asked = wins.get("skipped", 0), wins["n"] + wins.get("skipped", 0)
        if skipped > MANY * asked:
            found.append(
                f"The judge gave no verdict on {skipped} of {asked} prompts about {name}: its win "
                "rate is of the others."
            )
    return found


def by_order(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each policy about which the judge's verdict often changed with the order."""
    found = []
    for name, wins in _win_rates(policies):
        many = wins.get("orders_differ", 0)
        if many > MANY * wins["n"]:
            found.append(
                f"The judge's verdict changed with the order of the responses on {many} of "
                f"{wins['n']} prompts about {name}. Those count as ties and bring the win rate "
                "nearer to one half."
            )
    return found


def at_chance(rewards: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each reward model that orders labels no better than a guess, or worse."""
    found = []
    for model in rewards:
        share = model.get("label_accuracy")
        if share and share["low"] <= EVEN:
            how = "worse than" if share["high"] < EVEN else "not distinguishable from"
            found.append(
                f"The reward model of {model['round']} is {how} guessing: its accuracy on the "
                f"held-out labels is {_shown(share)}."
            )
    return found


def below_baselines(rewards: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each reward model that a baseline equals on the held-out labels."""
    found = []
    for model in (model for model in rewards if model.get("label_accuracy")):
        accuracy = model["label_accuracy"]["mean"]
        numbers = _baselines(model).items()
        better = [f"{name} {value:.3f}" for name, value in numbers if value >= accuracy]
        if better:
            found.append(
                f"The reward model of {model['round']} does not beat {' and '.join(better)}: its "
                f"accuracy on the held-out labels is {accuracy:.3f}, so what it judges better "
                "need not be what the labels mean."
            )
    return found


def heldout_loss(results: Mapping[str, Any]) -> str | None:
    """What SFT learnt of demonstrations that it has not seen; None where none were held out."""
    found = (results.get("sft") or {}).get("heldout")
    if found is None:
        return None
    return (
        f"SFT on {found['demonstrations']} held-out demonstrations: {found['base']:.3f} -> "
        f"{found['sft']:.3f} nats a token."
    )


def baselines(rewards: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each round whose reward model has baselines on held-out labels."""
    lines = []
    for model in rewards:
        shown = [f"{name} {value:.3f}" for name, value in _baselines(model).items()]
        if shown:
            lines.append(
                f"Baselines on the held-out labels of {model['round']}: {', '.join(shown)}."
            )
    return lines


def _baselines(model: Mapping[str, Any]) -> dict[str, float]:
    numbers = {
        "longer wins": (model.get("label_longer_wins") or {}).get("mean"),
        "bag of words": model.get("bag_of_words"),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def _win_rates(
    policies: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Name and win rate of each policy that was judged without gold."""
    for policy in policies:
        wins = policy.get("win_rate_vs_sft")
        if policy.get("gold") is None and wins:
            yield policy.get("name") or f"test ({policy.get('policy')})", wins


def _shown(share: Mapping[str, float]) -> str:
    return f"{share['mean']:.3f} [{share['low']:.3f}, {share['high']:.3f}]"
