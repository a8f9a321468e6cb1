"""Where what a stage reads comes from: an earlier stage, git, or this machine alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.params.loading import read_yaml
from tasks.workspace.dvc_definition import DefinitionError, read_definition
from tasks.workspace.dvc_lockfile import LockedStage, read_lock
from tasks.workspace.git import git


@dataclass(frozen=True, slots=True)
class StageInputs:
    """The files and folders that a stage reads."""

    outputs: tuple[str, ...]
    """Those that earlier stages have made, and DVC keeps."""
    makers: tuple[str, ...]
    """These stages."""
    private: tuple[str, ...]
    """Those that neither DVC nor git has; of a folder that git has in part, the first file."""


def stage_inputs(root: Path, stage: str) -> StageInputs:
    """What a stage of `root` reads, by dvc.yaml, dvc.lock and git.

    Raises:
        DefinitionError: dvc.yaml cannot be read, or has no such stage.
        ParamsError: params.yaml cannot be read.
    """
    values = read_yaml(root / "params.yaml")
    name, _, key = stage.partition("@")
    if key and key not in (values.get("rounds") or {}):
        raise DefinitionError(f"params.yaml has no round {key!r}, and so dvc.yaml no stage {stage}")
    definition = read_definition(root, stage, values)
    if definition is None:
        raise DefinitionError(f"dvc.yaml has no stage {name}")
    lock = read_lock(root)
    made = {
        dep: [
            name for name, locked in lock.items() if any(overlap(dep, out) for out in locked.outs)
        ]
        for dep in definition.deps
    }
    return StageInputs(
        outputs=tuple(
            # DVC pulls what lies in an output, but knows no folder of several.
            dict.fromkeys(path for dep, names in made.items() for path in _pulled(dep, names, lock))
        ),
        makers=tuple(dict.fromkeys(name for names in made.values() for name in names)),
        private=tuple(
            lacking
            for dep, names in made.items()
            if not names and (lacking := _not_in_git(root, dep))
        ),
    )


def _pulled(dep: str, makers: Iterable[str], lock: Mapping[str, LockedStage]) -> list[str]:
    """What DVC has to pull for a dependency: itself, or the outputs below it."""
    outs = [out for name in makers for out in lock[name].outs]
    below = [out for out in outs if out.startswith(f"{dep}/")]
    return below or [dep] * bool(outs)


def _not_in_git(root: Path, dep: str) -> str:
    """What git lacks of a dependency: itself, or the first file in it; empty: nothing."""
    if Path(dep).is_absolute() or not git(root, "ls-files", "--", dep):
        return dep
    # Ignored ones too: DVC counts each that .dvcignore does not name.
    what = ("-z", "--others", "--exclude-per-directory=.dvcignore")
    return git(root, "ls-files", *what, "--", dep).partition("\0")[0]


def overlap(one: str, other: str) -> bool:
    """Whether two paths are one, or one is a folder that holds the other."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
