"""Reads `run.bits` before a stage's imports, since the libraries read its effect when loaded."""

from pathlib import Path

from ruamel.yaml.error import YAMLError

from rlhf.bits import choose
from tasks.params.yaml_files import YAMLTooLargeError, load_yaml


def choose_bits(params: Path) -> None:
    """Let the libraries compute as `run.bits` of a params file says; portable where it is silent.

    A file that cannot be read says nothing here. The stage reports what is wrong with it when it
    reads all of it.
    """
    try:
        raw = load_yaml(params)
    except (OSError, UnicodeDecodeError, YAMLError, YAMLTooLargeError):
        raw = None
    run = raw.get("run") if isinstance(raw, dict) else None
    native = isinstance(run, dict) and run.get("bits") == "native"
    choose("native" if native else "portable")
