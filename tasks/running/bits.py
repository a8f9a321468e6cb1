"""Reads `run.bits` before a stage's imports, since the libraries read its effect when loaded."""

from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rlhf.bits import choose


def choose_bits(params: Path) -> None:
    """Let the libraries compute as `run.bits` of a params file says; portable where it is silent.

    A file that cannot be read says nothing here. The stage reports what is wrong with it when it
    reads all of it.
    """
    try:
        raw = YAML(typ="safe", pure=True).load(params.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        raw = None
    run = raw.get("run") if isinstance(raw, dict) else None
    native = isinstance(run, dict) and run.get("bits") == "native"
    choose("native" if native else "portable")
