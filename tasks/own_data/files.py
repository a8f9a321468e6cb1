"""The files and folders that params.yaml names, as dependencies in dvc.yaml.

DVC can fill `${...}` into a dependency, but only with one value that always exists: it has no
defaults, no nested lists, and cannot tell a file from a hub id. So the paths in params are written
into dvc.yaml, one line each, marked with the key; from then on DVC tracks them by content like
everything else. Drivers do this first. A stage that DVC started without these lines is refused,
because DVC would record and cache its outputs without those files.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from rlhf.params.reward import NO_MODEL
from tasks.params.loading import Params, ParamsError

MARK = "  # named in params.yaml: "
"""Between a dependency and the key that names it; lines that have it are written here."""

PATHS = (
    "prepare.files.prompts",
    "prepare.files.demonstrations",
    "prepare.files.corpus",
    "prepare.files.preferences",
    "base.model",
    "label.file",
    "label.reward_model",
    "reward.model",
)
"""Params that name a file or folder, beside the list `prepare.sources`; the stage comes first."""

SCORING = ("ppo", "evaluate", "test", "best_of_n")
"""The stages that reward responses as `ppo.rewards` says."""

_STAGE = re.compile(r"^  ([\w-]+):\s*$")
_DEPS = re.compile(r"^( +)deps:\s*$")


@dataclass(frozen=True, slots=True)
class Named:
    """A path in params.yaml that is in use."""

    stage: str
    """The stage that reads it."""
    key: str
    path: str
    pinned: bool = False
    """Whether a revision goes with it: then it may be the id of something on the hub."""


def named_paths(values: Mapping[str, Any]) -> Iterator[Named]:
    """Everything that the values of a params.yaml name and a stage will read."""
    annotators = _at(values, "label.annotators")
    for key in PATHS:
        stage, _, name = key.partition(".")
        path = _at(values, key)
        unused = (stage == "label" and name != annotators) or path == NO_MODEL
        if isinstance(path, str) and not unused:
            pinned = key == "base.model" and _at(values, "base.revision") is not None
            yield Named(stage, key, path, pinned=pinned)
    yield from _named_by_several(values)
    sources = _at(values, "prepare.sources")
    for number, source in enumerate(sources if isinstance(sources, list | tuple) else ()):
        if isinstance(path := _at(source, "path"), str):
            pinned = _at(source, "revision") is not None
            yield Named("prepare", f"prepare.sources.{number}.path", path, pinned=pinned)


def _named_by_several(values: Mapping[str, Any]) -> Iterator[Named]:
    """What more than one stage reads: rewards of the user's own, and a judge that evaluates."""
    function = _at(values, "ppo.rewards.function")
    if isinstance(function, str) and ":" in function:
        for stage in SCORING:
            yield Named(stage, "ppo.rewards.function", function.rpartition(":")[0])
    words = _at(values, "ppo.rewards.sentiment_words")
    if isinstance(words, str):
        for stage in SCORING:
            yield Named(stage, "ppo.rewards.sentiment_words", words)
    judge = _at(values, "label.reward_model")
    if _at(values, "evaluate.judge") == "reward_model" and isinstance(judge, str):
        for stage in ("evaluate", "test"):
            yield Named(stage, "label.reward_model", judge)


def own_files(root: Path, params: Params, stage: str) -> list[str]:
    """The existing paths of a stage, without ids on the hub."""
    return [named.path for named in _present(root, params) if named.stage == stage]


def follow(root: Path, params: Params) -> bool:
    """Bring the dependencies in dvc.yaml up to date with params; returns whether any changed.

    Raises:
        ParamsError: dvc.yaml has no list of dependencies that a line could be added to.
    """
    named = _present(root, params)
    return rewrite_definition(root, lambda text: with_named(text, named, root / "dvc.yaml"))


def rewrite_definition(root: Path, change: Callable[[str], str]) -> bool:
    """Replace the text of dvc.yaml, where there is one; returns whether it is another now."""
    path = root / "dvc.yaml"
    if not path.exists():
        return False
    before = path.read_text(encoding="utf-8")
    after = change(before)
    if after == before:
        return False
    draft = path.with_name(".dvc.yaml.draft")
    draft.write_text(after, encoding="utf-8")
    draft.replace(path)
    return True


def require_followed(root: Path, params: Params) -> None:
    """Refuse to run if DVC read dvc.yaml before these files were listed in it.

    DVC reads it once, before any stage starts: what ran now would be recorded and cached as made
    without these files, and come back when they have changed.

    Raises:
        ParamsError: dvc.yaml was outdated; it has now been updated.
    """
    if "DVC_STAGE" not in os.environ:
        return
    before = _marked(root)
    if follow(root, params):
        now = _marked(root)
        news = [f"now lists {line}" for line in now if line not in before]
        news += [f"no longer lists {line}" for line in before if line not in now]
        raise ParamsError(
            f"dvc.yaml {'; it '.join(news)}. DVC had read it before: run the same command again "
            "(make repro and make flow bring dvc.yaml up to date before DVC reads it)"
        )


def _marked(root: Path) -> list[str]:
    """Our lines of dvc.yaml in words: the path and the key that names it."""
    text = (root / "dvc.yaml").read_text(encoding="utf-8") if (root / "dvc.yaml").exists() else ""
    parts = [line.partition(MARK) for line in text.splitlines() if MARK in line]
    return [f"{entry.strip().removeprefix('- ')} ({key})" for entry, _, key in parts]


def with_named(text: str, named: list[Named], path: Path) -> str:
    """The text of a dvc.yaml with exactly these of our lines among the deps.

    Raises:
        ParamsError: a stage has no block list `deps:`.
    """
    lines = [line for line in text.splitlines(keepends=True) if MARK not in line]
    wanted = _missing_deps("".join(lines), named)
    written, stage = [], ""
    for line in lines:
        written.append(line)
        if (found := _STAGE.match(line)) is not None:
            stage = found[1]
        elif (found := _DEPS.match(line)) is not None:
            for each in wanted.pop(stage, []):
                written.append(f"{found[1]}  - {_quoted(each.path)}{MARK}{each.key}\n")
    for stage, left in wanted.items():
        raise ParamsError(
            f"{path}: stage {stage} has no block list `deps:` to which "
            f"{left[0].path} ({left[0].key}) could be added"
        )
    return "".join(written)


def _missing_deps(text: str, named: list[Named]) -> dict[str, list[Named]]:
    """By stage, what is not among its deps already, each path once."""
    stages: Mapping[str, Mapping[str, object]] = YAML(typ="safe").load(text)["stages"]
    wanted: dict[str, list[Named]] = defaultdict(list)
    for each in named:
        entry = stages.get(each.stage, {})
        body = entry.get("do", entry)
        known = [*_deps(body), *(other.path for other in wanted[each.stage])]
        if each.path not in known:
            wanted[each.stage].append(each)
    return {stage: entries for stage, entries in wanted.items() if entries}


def _deps(body: object) -> list[str]:
    return list(body.get("deps") or []) if isinstance(body, Mapping) else []


def _present(root: Path, params: Params) -> list[Named]:
    return [named for named in named_paths(asdict(params)) if (root / named.path).exists()]


def _at(values: object, key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _quoted(path: str) -> str:
    """A YAML text in which DVC fills in nothing."""
    return json.dumps(path.replace("${", "\\${"), ensure_ascii=False)
