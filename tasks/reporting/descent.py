"""Which rounds a policy comes from, by the params `rounds` and `ppo.start_sft`."""

from collections.abc import Mapping

from tasks.params.loading import ParamsError, RoundParams

SFT = "models/sft"


def trained_in(rounds: Mapping[str, RoundParams], final: str, start_sft: float) -> list[str]:
    """The rounds whose PPO the weights of the final policy went through, the first one first."""
    found = [final]
    while start_sft < 1 and (before := _round_of(rounds[found[-1]].start)) in rounds:
        found.append(before)
    return found[::-1]


def formed_in(rounds: Mapping[str, RoundParams], final: str) -> list[str]:
    """The rounds whose judgments formed the final policy, also by way of other models; in order.

    What sampled its comparisons counts, as it does for `tasks.lineage`.

    Raises:
        ParamsError: `final` is not one of the rounds.
    """
    if final not in rounds:
        raise ParamsError(
            f"final: {final!r} is not one of the rounds: {', '.join(rounds) or 'there are none'}"
        )
    found, todo = {final}, [final]
    while todo:
        one = rounds[todo.pop()]
        for path in (one.policy, one.start, one.reward_model, one.preferences):
            if (before := _round_of(path)) in rounds and before not in found:
                found.add(before)
                todo.append(before)
    return [key for key in rounds if key in found]


def started_elsewhere(rounds: Mapping[str, RoundParams], start_sft: float) -> list[str]:
    """The rounds whose PPO did not begin with the policy that `evaluate` compares theirs with."""
    return [
        key
        for key, one in rounds.items()
        if one.start != one.policy or (start_sft > 0 and one.policy != SFT)
    ]


def _round_of(path: str) -> str:
    """`r1` of models/rounds/r1/policy; empty for what is of no round."""
    parts = path.split("/")
    return parts[2] if parts[1:2] == ["rounds"] and len(parts) > 2 else ""
