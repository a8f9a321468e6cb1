"""What a stage's result depends on, as one object, so that training resumes only unchanged."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rlhf.manifests import MANIFEST, sha256
from tasks.params.loading import flatten
from tasks.running.environment import deciding

Identity = Mapping[str, Mapping[str, Any]]
"""`params`, `inputs`, `code` and `environment`, each flat: name -> value or hash. `made_on` is the
whole environment, for people to read."""

_DECIDING = ("params", "inputs", "code", "environment")

_WHAT_IT_IS_MADE_ON = {"run.processes", "run.sharded"}
"""Parameters in which a checkpoint may be another's (`resuming`)."""


def identify(
    root: Path,
    stage: str,
    *,
    params: Mapping[str, Any],
    inputs: Sequence[str],
    environment: Mapping[str, Any],
) -> Identity:
    """Everything that decides the bytes of a stage's outputs.

    Inputs and code are hashed as they are now, so an output edited by hand is detected whatever
    dvc.lock says. Code is what `dvc.yaml` names for the stage.
    """
    return {
        "params": {k: v for k, v in flatten(params).items() if k not in _WHAT_IT_IS_MADE_ON},
        "inputs": {path: _content(root / path) for path in inputs},
        "code": {path: _content(root / path) for path in _code(root, stage)},
        "environment": deciding(environment),
        "made_on": environment,
    }


def fingerprint(identity: Identity) -> str:
    """Sixteen hex digits that stand for an identity."""
    parts = {part: identity[part] for part in _DECIDING}
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(before: Identity, now: Identity) -> str:
    """The differences, briefly: `params ppo.kl_coef (0.05, now 0.1)`."""
    found = []
    for part in _DECIDING:
        old, new = before.get(part, {}), now[part]
        for name in sorted({*old, *new}):
            if str(old.get(name)) != str(new.get(name)):
                shown = f" ({old.get(name)}, now {new.get(name)})"
                found.append(f"{part} {name}{shown if part in ('params', 'environment') else ''}")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


def _code(root: Path, stage: str) -> list[str]:
    """The modules that `dvc.yaml` names among the deps of a stage; none without a `dvc.yaml`."""
    path = root / "dvc.yaml"
    if not path.exists():
        return []
    stages = YAML(typ="safe").load(path.read_text(encoding="utf-8"))["stages"]
    entry = stages.get(stage.partition("@")[0], {})
    return [dep for dep in entry.get("do", entry).get("deps", []) if dep.endswith(".py")]


def _content(path: Path) -> str:
    """A hash of a file or folder; of a model folder that of its manifest; empty for nothing."""
    if path.is_file():
        return sha256(path)
    if not path.is_dir():
        return ""
    if (path / MANIFEST).is_file():
        return sha256(path / MANIFEST)
    parts = [[child.name, _content(child)] for child in sorted(path.iterdir())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
