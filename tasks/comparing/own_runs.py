"""Which runs in a `dvc.lock` belong to the params beside it.

A variant that has not come to its end has the main line's entries for what it has not run, and a
commit may have a `params.yaml` that was changed after the run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.params.loading import flatten
from tasks.tracing.records import Ran
from tasks.workspace.stage_inputs import overlap


def own_runs(
    runs: Sequence[Ran], params: Mapping[str, Any]
) -> tuple[tuple[Ran, ...], tuple[str, ...]]:
    """The runs with these params, each from what the others made; and the stages that have none."""
    flat = flatten(params)
    made = {path: (ran.stage, digest) for ran in runs for path, digest in ran.outs.items()}
    needs = {
        ran.stage: {made[out][0] for out in made if any(overlap(out, dep) for dep in ran.deps)}
        for ran in runs
    }
    others = {
        ran.stage for ran in runs if _has_other_params(ran, flat) or _has_read_others(ran, made)
    }
    while more := {stage for stage in needs if stage not in others and needs[stage] & others}:
        others |= more
    kept = tuple(ran for ran in runs if ran.stage not in others)
    return kept, tuple(ran.stage for ran in runs if ran.stage in others)


def _has_other_params(ran: Ran, flat: Mapping[str, Any]) -> bool:
    """Whether a value that was recorded is another one now, or a section has got a further key.

    A value that is not named is null.
    """
    recorded = flatten(ran.params)
    return any(flat.get(key) != value for key, value in recorded.items()) or any(
        key not in recorded and any(key.startswith(f"{name}.") for name in ran.params)
        for key in flat
    )


def _has_read_others(ran: Ran, made: Mapping[str, tuple[str, str]]) -> bool:
    """Whether the run has read anything that is not what the recorded runs have made."""
    return any(path in made and made[path][1] != digest for path, digest in ran.deps.items())
