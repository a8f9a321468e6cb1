"""The stages of dvc.yaml as they stand there, and their modules below tasks/."""

from typing import Any

from ruamel.yaml import YAML

from tasks.own_data.files import MARK
from tests.source_files import ROOT


def read_yaml(name: str) -> Any:
    """Without the lines that a user's own files have in dvc.yaml: those are no one's imports."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return YAML(typ="safe").load("".join(line for line in lines if MARK not in line))


def stage_definitions() -> dict[str, dict[str, Any]]:
    """Stage -> its definition, templates of rounds included, `${...}` not yet filled in."""
    stages = read_yaml("dvc.yaml")["stages"]
    return {name: entry.get("do", entry) for name, entry in stages.items()}


STAGES = stage_definitions()
STAGE_MODULES = {name: entry["cmd"].split()[3].partition(".")[2] for name, entry in STAGES.items()}
"""Stage -> module below tasks/, from its command."""


def outs_of(stage: str) -> set[str]:
    """Paths of the outputs, also of those with settings such as `cache: false`."""
    return {path for out in STAGES[stage]["outs"] for path in ([out] if type(out) is str else out)}
