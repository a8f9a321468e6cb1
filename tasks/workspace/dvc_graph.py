"""The pipeline as DVC has it: its graph, and which of its stages are stale and why.

DVC is asked here in this process, which takes a second; `dvc repro --single-item` for each stage
would take one for each.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dvc.dependency.param import ParamsDependency
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.output import Output
from dvc.repo import Repo, lock_repo
from dvc.stage import Stage
from dvc.stage.cache import RunCacheNotFoundError

from tasks.params.loading import flatten
from tasks.workspace.account import account
from tasks.workspace.files import relative_to

MOST_REASONS = 3
NEVER_RAN = "never ran"

Changes = dict[str, tuple[str, ...]]
"""Stage -> what of it is not as when it last ran: `params.yaml: ppo.kl_coef`, `rlhf/ppo.py`."""


class GraphError(Exception):
    """DVC cannot read the pipeline; the message is DVC's."""


class DvcBusyError(Exception):
    """Another DVC command works in the workspace, and this one has to wait."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The stages of dvc.yaml."""

    needs: dict[str, set[str]]
    """Stage -> those that it depends on, in the order of dvc.yaml."""
    gpu: set[str]
    """Stages that use the accelerator (`meta: {gpu: true}`)."""
    stale: set[str]
    """Stages that may have to run: what has changed, and all that depends on it.

    Of those that only depend on it, some turn out unchanged when their turn comes: what they need
    has run again, to the same bytes.
    """


def read_graph(root: Path) -> Graph:
    """The stages of `root`'s dvc.yaml as they are now.

    Raises:
        GraphError: there is no DVC repository, or dvc.yaml is not valid.
        DvcBusyError: another DVC command works here.
    """
    with _stages(root) as (repo, stages):
        # DVC's edges lead from a stage to what it depends on.
        graph = repo.index.graph
        needs = {s.name: {need.name for need in graph.successors(s) if need.cmd} for s in stages}
        gpu = {s.name for s in stages if (s.meta or {}).get("gpu")}
        always = {s.name for s in stages if s.always_changed or s.is_callback}
        return Graph(needs, gpu, with_dependents(always | set(_changes(root, stages)), needs))


def changes(root: Path) -> Changes:
    """What has changed since the stages of `root` last ran; a stage without changes is left out.

    One that only depends on a stage with changes has none itself.

    Raises:
        GraphError: there is no DVC repository, or dvc.yaml is not valid.
        DvcBusyError: another DVC command works here.
    """
    with _stages(root) as (_, stages):
        return _changes(root, stages)


def need(root: Path, stage: str) -> Literal["nothing", "restoring", "running"]:
    """What it takes to bring a stage up to date, once those before it are.

    Restoring: it has run with these inputs before, and DVC's cache here has its outputs.

    Raises:
        GraphError: there is no such stage, or something that it reads is missing.
        DvcBusyError: another DVC command works here.
    """
    with _stages(root) as (repo, stages):
        found = next((each for each in stages if each.name == stage), None)
        if found is None:
            raise GraphError(f"{root}: dvc.yaml has no stage {stage}")
        if not found.status():
            return "nothing"
        try:
            found.save_deps()
            repo.stage_cache.restore(found, dry=True)
        except RunCacheNotFoundError:
            return "running"
        return "restoring"


def with_dependents(names: Iterable[str], needs: Mapping[str, set[str]]) -> set[str]:
    """`names` and all stages that depend on one of them, however far away."""
    found = set(names)
    while more := {name for name in needs if name not in found and needs[name] & found}:
        found |= more
    return found


def in_words(found: Changes) -> str:
    """`ppo@r1, ppo@r2 (params.yaml: ppo.kl_coef); sft (tasks/sft.py)`."""
    stages: dict[tuple[str, ...], list[str]] = {}
    for stage, reasons in found.items():
        stages.setdefault(reasons, []).append(stage)
    return "; ".join(f"{', '.join(names)} ({_brief(why)})" for why, names in stages.items())


def _brief(reasons: tuple[str, ...]) -> str:
    more = len(reasons) - MOST_REASONS
    return ", ".join(reasons[:MOST_REASONS]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _stages(root: Path) -> Iterator[tuple[Repo, list[Stage]]]:
    """DVC's repository, locked, and the stages of its dvc.yaml."""
    os.environ.update(account())
    try:
        with Repo(str(root)) as repo, lock_repo(repo):
            # Other stages of the index are files under `dvc add` and dvc.yaml files of subfolders.
            yield (
                repo,
                [s for s in repo.index.stages if s.cmd and Path(s.path) == root / "dvc.yaml"],
            )
    except LockError as error:
        raise DvcBusyError(f"{root}: another DVC command works here; wait for it") from error
    except DvcException as error:
        raise GraphError(f"{root}: {error}") from error


def _changes(root: Path, stages: Iterable[Stage]) -> Changes:
    return {s.name: reasons for s in stages if (reasons := tuple(_reasons(root, s)))}


def _reasons(root: Path, stage: Stage) -> Iterator[str]:
    # It takes DVC's locks on what it reads, as `dvc status` does.
    if not stage.status():
        return
    if not any(out.hash_info for out in stage.outs):
        yield NEVER_RAN
        return
    if stage.changed_stage():
        yield "its command or its list of files"
    for dep in stage.deps:
        if isinstance(dep, ParamsDependency):
            yield from _params_reasons(root, dep)
        else:
            yield from _file_reasons(root, dep)
    for out in stage.outs:
        yield from _file_reasons(root, out)


def _file_reasons(root: Path, entry: Output) -> Iterator[str]:
    for state in entry.status().values():
        path = relative_to(Path(entry.fs_path), root)
        yield path if state == "modified" else f"{path}: {state}"


def _params_reasons(root: Path, dep: ParamsDependency) -> Iterator[str]:
    path = relative_to(Path(dep.fs_path), root)
    for found in dep.status().values():
        if isinstance(found, str):
            yield f"{path}: {found}"
            continue
        before, now = dep.hash_info.value or {}, dep.read_params()
        keys = [key for name in found for key in _differing(name, before.get(name), now.get(name))]
        if keys:
            yield f"{path}: {', '.join(keys)}"


def _differing(name: str, before: Any, now: Any) -> list[str]:
    """The keys within a section that differ; the section itself where it is new or gone."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [name]
    old, new = flatten(before, f"{name}."), flatten(now, f"{name}.")
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]
