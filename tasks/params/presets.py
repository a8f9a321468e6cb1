"""Presets: recipes for models of other sizes than the embedded one, written into params.yaml once.

A variant is laid over params.yaml for one run in a workspace of its own, and params.yaml stays as
it is. A preset changes params.yaml itself, so that `dvc repro`, the flow and later runs all see the
same recipe, and `git diff` shows it. It replaces what has its default or comes from another preset;
every other value is the user's own and stays. Taking a preset twice changes nothing.

    python -m tasks.params.presets smollm2-135m --model mine/SmolLM2-135M-Instruct
"""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml.comments import CommentedMap

from tasks.params.editing import round_trip_yaml, set_value
from tasks.params.loading import Params, ParamsError, load_params, read_yaml, unknown_keys
from tasks.params.overlays import lay_over

FOLDER = Path("params") / "presets"
WITHOUT_DEFAULTS = ("rounds", "final")
"""What a preset cannot hold: every params.yaml says it for itself."""


class Change(NamedTuple):
    """One key where params.yaml and the preset differ."""

    key: str
    """Dotted, as in `ppo.kl_coef`."""
    before: Any
    preset: Any
    own: bool
    """It is the user's own value, which stays."""


def available_presets(root: Path) -> list[str]:
    """Names of the presets below `params/presets/`."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))


def take_preset(root: Path, name: str, model: str | None) -> list[Change]:
    """Write a preset, and the base model where one is given, into params.yaml.

    Returns:
        what has changed, and what has not because it is the user's own; empty the second time.

    Raises:
        ParamsError: no such preset, no base model, or params.yaml with it has problems; then
            params.yaml is as it was.
    """
    presets = {each: _read_preset(root, each) for each in available_presets(root)}
    if name not in presets:
        found = ", ".join(presets) or "none"
        raise ParamsError(
            f"no preset {name!r}: {FOLDER / name}.yaml is missing; there are: {found}"
        )
    if model is not None and not model.strip():
        raise ParamsError("--model (MODEL=) is empty, expected the folder of a model")
    path = root / "params.yaml"
    values = read_yaml(path)
    if model is None and not (isinstance(values.get("base"), dict) and values["base"].get("model")):
        raise ParamsError(
            f"preset {name} is for a model of your own, and base.model is null; name its folder: "
            f"make repro PRESET={name} MODEL=folder"
        )
    of_hub = model is not None and not (root / model).is_dir()
    changes = [
        *_new_model(values, _named(root, model), of_hub=of_hub),
        *_changes(values, name, presets),
    ]
    if any(not change.own for change in changes):
        _write(path, changes)
    return changes


def describe(name: str, changes: list[Change]) -> str:
    """What taking a preset has done, a line for each key; empty where it was taken before."""
    if not changes:
        return ""
    width = max(len(change.key) for change in changes)
    lines = [f"Preset {name} ({FOLDER / name}.yaml) in params.yaml:"]
    for key, before, preset, own in changes:
        what = f"{_shown(before)}, your own, stays (preset: {_shown(preset)})"
        if not own:
            what = f"{_shown(before)} -> {_shown(preset)}"
        lines.append(f"  {key:<{width}}  {what}")
    return "\n".join(
        [*lines, "`git diff params.yaml` shows it; `make repro` alone uses it now.", ""]
    )


def _read_preset(root: Path, name: str) -> CommentedMap:
    """A preset with its numbers as they are written (`2e-5`)."""
    path = root / FOLDER / f"{name}.yaml"
    raw = read_yaml(path)
    wrong = [key for key in raw if key in WITHOUT_DEFAULTS or key not in _kinds()]
    if wrong:
        raise ParamsError(f"{path}: {wrong[0]}: no section that a preset may have")
    if unknown := list(unknown_keys(raw, Params, "")):
        raise ParamsError("\n".join(f"{path}: {problem}" for problem in unknown))
    loaded = round_trip_yaml().load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, CommentedMap)
    return loaded


def _kinds() -> dict[str, Any]:
    kinds = typing.get_type_hints(Params)
    return {name: kind for name, kind in kinds.items() if name not in WITHOUT_DEFAULTS}


def _named(root: Path, model: str | None) -> str | None:
    """The model as params.yaml names it: a folder elsewhere by its full path.

    Such a path is the same from every workspace, and with it what `base` writes.
    """
    if model is None or not (root / model).is_dir():
        return model
    # By its name alone: a link in the checkout stays one.
    folder = Path(os.path.abspath(root / model))  # noqa: PTH100
    return model if folder.is_relative_to(root.absolute()) else str(folder)


def _new_model(values: Mapping[str, Any], model: str | None, *, of_hub: bool) -> Iterator[Change]:
    """The model, and no revision for a folder; one of the hub needs that which is there."""
    base = values.get("base")
    known = base if isinstance(base, dict) else {}
    if model is None or known.get("model") == model:
        return
    yield Change("base.model", known.get("model"), model, own=False)
    if known.get("revision") is not None and not of_hub:
        yield Change("base.revision", known["revision"], None, own=False)


def _changes(
    values: Mapping[str, Any], name: str, presets: Mapping[str, Mapping[str, Any]]
) -> Iterator[Change]:
    defaults = {section: dataclasses.asdict(kind()) for section, kind in _kinds().items()}
    now = dict(_leaves(lay_over(defaults, values), defaults))
    given = dict(_leaves(defaults, defaults))
    others = [dict(_leaves(other, defaults)) for other in presets.values()]
    for key, wanted in _leaves(presets[name], defaults):
        if now.get(key) != wanted:
            known = [given.get(key), *(other[key] for other in others if key in other)]
            yield Change(key, now.get(key), wanted, own=now.get(key) not in known)


def _leaves(values: object, defaults: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> value; a section that is null by default (`lora`) is one value."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        default = defaults.get(key) if isinstance(defaults, Mapping) else None
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _leaves(value, default, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _write(path: Path, changes: list[Change]) -> None:
    """Replace values in a params file; comments, order and all other values stay."""
    yaml = round_trip_yaml()
    values = yaml.load(path.read_text(encoding="utf-8"))
    for change in changes:
        if not change.own:
            set_value(values, change.key.split("."), change.preset)
    text = StringIO()
    yaml.dump(values, text)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text.getvalue(), encoding="utf-8")
        load_params(draft)
        draft.replace(path)
    except ParamsError as error:
        raise ParamsError(str(error).replace(str(draft), str(path))) from None
    finally:
        draft.unlink(missing_ok=True)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.params.presets", description="Write a preset into params.yaml."
    )
    parser.add_argument("preset", help=f"name of a file in {FOLDER}/")
    parser.add_argument("--model", metavar="FOLDER", help="becomes base.model")
    options = parser.parse_args(argv)
    try:
        changes = take_preset(Path.cwd(), options.preset, options.model)
    except ParamsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(describe(options.preset, changes) or "Nothing to change.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
