"""What somebody who orders a run wants of params.yaml, written into the workspace of the run."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tasks.own_data.preflight import check_inputs
from tasks.params.editing import edit_params, lost_parameters
from tasks.params.loading import ParamsError, flatten, load_params, read_yaml
from tasks.params.presets import available_presets, take_preset
from tasks.workspace.dvc_definition import stage_names
from tasks.workspace.variants import available, read_overlay
from tasks.workspace.worktrees import WorkspaceError, link_own_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What somebody who orders a run wants of params.yaml."""

    recipe: str | None = None
    """A variant or a preset, as the revision has it."""
    rounds: int | None = None
    """Their number; None: as many as the revision has."""
    people: bool | None = None
    """Whether people label, and the run waits for them; None: as the revision has it."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Dotted key -> value, over all else."""
    until: str | None = None
    """The last stage that is wanted; None: all."""


def choose(root: Path, workspace: Path, choices: Choices) -> None:
    """Write the choices into the workspace's params.yaml, or leave it as it is.

    Args:
        root: the checkout, to whose files and folders the params may lead.
        workspace: of the run.
        choices: what goes over its params.yaml.

    Raises:
        WorkspaceError: there is no pipeline in the workspace.
        ParamsError: every problem with its dotted key, and the nearest one of an unknown key.
    """
    path = workspace / "params.yaml"
    if not path.is_file() or not (workspace / "dvc.yaml").is_file():
        raise WorkspaceError("revision: it has no params.yaml or no dvc.yaml")
    before = path.read_text(encoding="utf-8")
    try:
        preset = None if choices.recipe is None else _take_variant(workspace, choices.recipe)
        edit_params(path, _annotators(path, choices.people), rounds=choices.rounds)
        if lost := list(lost_parameters(read_yaml(path), choices.values)):
            raise ParamsError("\n".join(lost))
        edit_params(path, choices.values)
        link_own_files(root, workspace)
        if preset is not None:
            _take_preset(workspace, preset)
            edit_params(path, choices.values)
        params = load_params(path)
        _require_stage(workspace, choices.until, params.rounds)
        check_inputs(params, workspace)
    except ParamsError as error:
        path.write_text(before, encoding="utf-8")
        raise ParamsError(str(error).replace(f"{path}: ", "")) from None


def _take_variant(workspace: Path, recipe: str) -> str | None:
    """Lay a variant over params.yaml; the name itself where it is a preset."""
    if recipe in available(workspace):
        overlay = read_overlay(workspace, recipe)
        edit_params(workspace / "params.yaml", flatten(overlay))
        return None
    if recipe in available_presets(workspace):
        return recipe
    raise ParamsError(
        f"recipe: no variant or preset {recipe!r}; there are: "
        f"{', '.join([*available(workspace), *available_presets(workspace)]) or 'none'}"
    )


def _take_preset(workspace: Path, name: str) -> None:
    if not read_yaml(workspace / "params.yaml")["base"].get("model"):
        raise ParamsError(
            f"recipe: the preset {name} is for a model of your own; name its folder among the "
            "overrides, as base.model"
        )
    take_preset(workspace, name, None)


def _annotators(path: Path, people: bool | None) -> dict[str, object]:
    """What has to change so that the run waits for people, or does not."""
    now = (read_yaml(path).get("label") or {}).get("annotators")
    if people is None or people == (now == "people"):
        return {}
    return {"label.annotators": "people" if people else "rubric"}


def _require_stage(workspace: Path, stage: str | None, rounds: Iterable[str]) -> None:
    names = stage_names(workspace, rounds)
    if stage is not None and stage not in names:
        near = difflib.get_close_matches(stage, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise ParamsError(f"until: no stage {stage!r}; {hint}")
