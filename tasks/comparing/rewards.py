"""Which rounds two sides score by measures of their own, so that no difference of scores counts."""

from contextlib import suppress
from dataclasses import fields, replace
from types import MappingProxyType

from pydantic import TypeAdapter

from rlhf.params.reward import NO_MODEL
from rlhf.params.rule_rewards import RewardMixParams
from tasks.comparing.sides import Side
from tasks.tracing.contents import ContentError, Contents

MANIFEST = "manifest.json"
MIX, MODEL = "ppo.rewards.", "reward.model"
NULL = "None"
"""How sides write null."""
OTHER_MIX, OTHER_MODELS = "other ppo.rewards", "other reward models"
JUDGES = MappingProxyType(
    {
        "label.language_model": "label.language_model.model",
        "label.reward_model": "label.reward_model",
    }
)
"""`win_rate_judge` of a policy's metrics -> the param that names its model."""
_MIX = TypeAdapter(RewardMixParams)


def other_rewards(first: Side, second: Side) -> dict[str, str]:
    """The rounds of both sides that each scores in its own way -> what differs.

    Reward models that each side trained score in units of their own, and what one of them prefers
    the other need not; the same holds where one side has the model of others, a function or rules.
    """
    ours, theirs = _reward_weights(first), _reward_weights(second)
    both = sorted(ours.keys() & theirs.keys())
    mix = _mix(first)
    if mix != _mix(second):
        return dict.fromkeys(both, OTHER_MIX)
    brought = first.params.get(MODEL, NULL)
    shared = brought not in (NULL, NO_MODEL) and brought == second.params.get(MODEL, NULL)
    if shared or mix.learned == 0:
        return {}
    return {key: OTHER_MODELS for key in both if ours[key] != theirs[key]}


def other_judges(first: Side, second: Side) -> frozenset[str]:
    """Judges of win rates that have one name and are another model on either side."""
    return frozenset(
        judge
        for judge, key in JUDGES.items()
        if first.params.get(key, NULL) != second.params.get(key, NULL)
    )


def _mix(one: Side) -> RewardMixParams:
    known = [field.name for field in fields(RewardMixParams)]
    stated = {name: one.params.get(f"{MIX}{name}", NULL) for name in known}
    given = {name: value for name, value in stated.items() if value != NULL}
    # Not what a response scores, but how long that may take.
    return replace(_MIX.validate_python(given), function_seconds=1.0)


def _reward_weights(one: Side) -> dict[str, object]:
    """Round -> what tells its reward model from others: the hashes of its files."""
    contents, found = Contents(one.root), dict[str, object]()
    for ran in one.runs:
        for path, digest in ran.outs.items():
            if path.startswith("models/rounds/") and path.endswith("/reward"):
                found[path.split("/")[2]] = digest
                with suppress(ContentError):
                    # The manifest names what it was made from: copies of one model differ there.
                    files = contents.files(path, digest).items()
                    found[path.split("/")[2]] = {n: md5 for n, md5 in files if n != MANIFEST}
    return found
