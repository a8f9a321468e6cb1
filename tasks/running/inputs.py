"""What a stage reads of earlier stages: the paths of its round, and their hashes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tasks.params.loading import Params
from tasks.workspace.dvc_lockfile import read_lock


def fill_paths(paths: Sequence[str], params: Params, round_key: str | None) -> list[str]:
    """Paths with `{key}`, the fields of the round, and `{final}` filled in."""
    fields = asdict(params.rounds[round_key]) if round_key else {}
    return [path.format(key=round_key, final=params.final, **fields) for path in paths]


def input_hashes(root: Path, inputs: Sequence[str], found: Mapping[str, str]) -> dict[str, str]:
    """Path -> hash, as DVC has it, of all that earlier stages wrote below the given inputs.

    Args:
        root: the repository.
        inputs: paths.
        found: path -> hash of what is really there, for those that are known. They count more than
            dvc.lock: a `git stash` or checkout during a run takes the entries of its stages away.
    """
    produced = {
        path: found.get(path) or digest
        for locked in read_lock(root).values()
        for path, digest in locked.outs.items()
    }
    return {
        path: digest
        for path, digest in sorted(produced.items())
        if any(path == wanted or path.startswith(f"{wanted}/") for wanted in inputs)
    }
