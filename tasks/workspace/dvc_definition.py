"""A stage as `dvc.yaml` defines it: its templates filled in, as DVC runs and records it."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tasks.workspace.dvc_rwlock import RWLOCK
from tasks.workspace.processes import started_by

_TEMPLATE = re.compile(r"\$\{\s*([\w.@-]+)\s*\}")


class DefinitionError(ValueError):
    """`dvc.yaml` cannot be read, or asks for something that params.yaml does not have."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What DVC knows of a stage before it runs."""

    cmd: str
    deps: tuple[str, ...]
    """Files and folders below the repository root; params are in `params`."""
    params: tuple[str, ...]
    """Dotted keys of params.yaml."""
    outs: tuple[str, ...]


def read_definition(root: Path, stage: str, values: Mapping[str, Any]) -> Definition | None:
    """The definition of a stage such as `sft` or `ppo@r1`; None where dvc.yaml has none.

    Args:
        root: the repository.
        stage: its name.
        values: the content of params.yaml, for the templates.

    Raises:
        DefinitionError: see there.
    """
    path = root / "dvc.yaml"
    if not path.exists():
        return None
    name, _, key = stage.partition("@")
    try:
        entry = YAML(typ="safe").load(path.read_text(encoding="utf-8"))["stages"].get(name)
    except (YAMLError, OSError, KeyError, TypeError, AttributeError) as error:
        raise DefinitionError(f"dvc.yaml: {' '.join(str(error).split())}") from None
    if entry is None:
        return None
    known = dict(values)
    if "foreach" in entry:
        known |= {"key": key, "item": _item(_filled(entry["foreach"], values), key)}
        entry = entry["do"]
    return Definition(
        cmd=_text(entry["cmd"], known),
        deps=tuple(_text(dep, known) for dep in entry.get("deps", [])),
        params=tuple(
            _text(param, known) for param in entry.get("params", []) if isinstance(param, str)
        ),
        outs=tuple(_text(out, known) for out in entry.get("outs", []) if isinstance(out, str)),
    )


def stage_names(root: Path, rounds: Iterable[str]) -> list[str]:
    """The names of all stages of dvc.yaml, as DVC has them with these rounds."""
    stages = YAML(typ="safe").load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    keys = list(rounds)
    return [
        full
        for name, entry in stages.items()
        for full in ([f"{name}@{key}" for key in keys] if "foreach" in entry else [name])
    ]


def round_outputs(root: Path) -> list[str]:
    """The outputs of stages that each round has, with `${key}` for the round's; none if unknown."""
    try:
        stages = YAML(typ="safe").load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
        entries = [entry.get("do") or {} for entry in stages.values()]
        found = [out for entry in entries for out in entry.get("outs") or []]
    except (YAMLError, OSError, KeyError, TypeError, AttributeError):
        return []  # DVC says what is wrong with the file.
    return [out for out in found if isinstance(out, str) and "${key}" in out]


def deps_of_parent(root: Path) -> set[str] | None:
    """The dependencies that the DVC which started this process has read, and will record.

    It read dvc.yaml when it started, which may be hours ago. It notes the files that it reads and
    writes for a stage in `.dvc/tmp/rwlock`. None where no DVC started this process.
    """
    try:
        noted = json.loads((root / RWLOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    dvc = started_by()
    writers, readers = noted.get("write", {}), noted.get("read", {})
    written = {path for path, held in writers.items() if held.get("pid") == dvc}
    read = {
        path for path, holders in readers.items() if any(holder["pid"] == dvc for holder in holders)
    }
    if not written:
        return None
    return read - written - {os.fspath(root.resolve() / "params.yaml")}


def look_up(values: Mapping[str, Any], dotted: str) -> Any:
    """The value of a dotted key.

    Raises:
        KeyError: there is none.
    """
    found: Any = values
    for part in dotted.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(dotted)
        found = found[part]
    return found


def _item(entries: Any, key: str) -> Any:
    """What `${item}` stands for."""
    return entries[key] if isinstance(entries, Mapping) and key in entries else key


def _text(template: str, values: Mapping[str, Any]) -> str:
    return str(_filled(template, values))


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A text with each `${...}` filled in; the value itself where there is nothing around it."""
    if not isinstance(template, str):
        return template
    try:
        if whole := _TEMPLATE.fullmatch(template):
            return look_up(values, whole[1])
        return _TEMPLATE.sub(lambda match: str(look_up(values, match[1])), template)
    except KeyError as error:
        raise DefinitionError(
            f"dvc.yaml: ${{{error.args[0]}}} stands for nothing in params.yaml"
        ) from None
