"""The parameters of a run that differ from the defaults of the code."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tasks.params.loading import Params, section

SECTIONS = (
    "ppo", "reward", "label", "sample", "sft", "base", "validate", "prepare", "evaluate",
    "best_of_n", "run", "report",
)  # fmt: skip
"""The sections that say most about a run first."""


class ChangedParam(NamedTuple):
    """One parameter with another value than its default."""

    key: str
    """Dotted, as in `ppo.kl_coef`."""
    value: Any
    default: Any


def changed_params(params: Params) -> list[ChangedParam]:
    """The parameters whose values differ from the defaults of the code, section by section."""
    changed: list[ChangedParam] = []
    for name in SECTIONS:
        defaults = dataclasses.asdict(type(getattr(params, name))())
        changed += _changed(section(params, name), defaults, f"{name}.")
    return changed


def _changed(
    values: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str
) -> Iterator[ChangedParam]:
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _changed(value, default, f"{prefix}{key}.")
        elif value != default:
            yield ChangedParam(f"{prefix}{key}", value, default)
