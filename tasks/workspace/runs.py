"""The workspace of a run: a git worktree of a revision, on a branch of the run's own.

`.work/runs/NAME` is on the branch `runs/NAME`. What a run has done is committed there: `dvc.lock`,
params.yaml as it was used, and `metrics/`. The checkout that the run comes from is not touched: it
may be edited, and other runs may work, meanwhile. A run whose name exists is continued. What was
withdrawn in the checkout is so in every run from its next start on, whatever revision it is of.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tasks.own_data.preflight import check_inputs
from tasks.params.editing import edit_params
from tasks.params.loading import ParamsError, flatten, load_params, read_yaml
from tasks.params.presets import available_presets, take_preset
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.dvc_definition import stage_names
from tasks.workspace.dvc_lockfile import only
from tasks.workspace.held import held
from tasks.workspace.variants import available, read_overlay
from tasks.workspace.withdrawn import bring_withdrawn, withdrawn_files
from tasks.workspace.worktrees import (
    RUNS_FOLDER,
    WorkspaceError,
    link_own_files,
    share_cache,
    worktree_git,
)

METRICS = "metrics"
_SETTINGS = ("params.yaml", "dvc.yaml")
NAMES = r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"
"""What a run may be called: it names a branch and a folder."""


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


def branch_of(name: str) -> str:
    """The branch of a run."""
    return f"runs/{name}"


@contextmanager
def run_workspace(
    root: Path, name: str, revision: str | None, choices: Choices, driver: Driver
) -> Iterator[tuple[Path, list[str]]]:
    """Make the workspace of a new run, or take up that of a known one, and hold it.

    Its files of tombstones have those of the checkout afterwards, committed there or not.

    Yields its path, and the ids of flow runs that died in it.

    Args:
        root: the checkout, of which only commits, and what was withdrawn, are taken.
        name: of the run.
        revision: what a new one starts from; None: the commit that is checked out. A known one
            must have started there.
        choices: go into the workspace's params.yaml.
        driver: who works in it.

    Raises:
        WorkspaceError: not a name, no such revision, one whose stages cannot leave out what was
            withdrawn, or git refuses.
        ParamsError: the choices or what the params name are wrong. A new run leaves nothing behind.
        WorkspaceBusyError: the run is running.
    """
    if not re.fullmatch(NAMES, name) or name.endswith(".lock"):
        raise WorkspaceError(
            f"name: {name!r}; expected letters, digits, `-`, `_` and single dots: it names a branch"
        )
    workspace = root / RUNS_FOLDER / name
    workspace.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # Git has one list of worktrees, and two runs of one name must not meet in the middle.
        with held(workspace.parent / ".lock"):
            new = _check_out(root, workspace, branch_of(name), revision)
            died = stack.enter_context(sole_use(workspace, driver))
            try:
                share_cache(root, workspace)
                bring_withdrawn(root, workspace)
                _choose(root, workspace, choices)
            except (ParamsError, WorkspaceError):
                if new:
                    remove_run(root, name)
                raise
        yield workspace, died


def remove_run(root: Path, name: str) -> None:
    """Remove a run's workspace and its branch."""
    worktree_git(root, "worktree", "remove", "--force", str(root / RUNS_FOLDER / name))
    worktree_git(root, "branch", "--quiet", "-D", branch_of(name))


def commit_run(
    workspace: Path,
    subject: str,
    *,
    files: Mapping[str, str],
    stages: Collection[str] | None,
    trailers: Mapping[str, str],
) -> str:
    """Commit what the run has done so far on its branch; the commit, new or the last one.

    Only the index changes, the files stay as they are: DVC still needs the entries of dvc.lock
    that are not true of this run yet.

    Args:
        workspace: of the run.
        subject: first line of the message.
        files: name below `metrics/` -> text; replace what is there. None of them: it stays.
        stages: those whose entries of dvc.lock are true of this run; None: leave it as it is.
        trailers: name -> value; empty ones are left out.
    """
    withdrawn = map(str, withdrawn_files(workspace))
    # Forced: a revision may ignore what a clone of the run has to leave out.
    worktree_git(workspace, "add", "--force", "--", *_SETTINGS, *withdrawn)
    if stages is not None:
        lock = workspace / "dvc.lock"
        text = only(lock.read_text(encoding="utf-8"), stages) if lock.exists() else ""
        _put(workspace, "dvc.lock", text)
    if files:
        worktree_git(
            workspace, "rm", "-r", "--force", "--quiet", "--cached", "--ignore-unmatch", METRICS
        )
    for name, text in files.items():
        _put(workspace, f"{METRICS}/{name}", text)
    if worktree_git(workspace, "diff", "--cached", "--name-only"):
        lines = [f"{key}: {value}" for key, value in trailers.items() if value]
        message = "\n".join([subject, "", *lines, ""])
        worktree_git(workspace, "commit", "--quiet", "--no-verify", "--file=-", stdin=message)
    return worktree_git(workspace, "rev-parse", "HEAD")


def is_committed(workspace: Path, subject: str, stages: Collection[str]) -> bool:
    """Whether the run's last commit of this subject has these params and entries of dvc.lock.

    A run that is ordered again and finds its rounds done has nothing to say of them.
    """
    line = subject.replace(".", r"\.")
    found = worktree_git(workspace, "log", "-1", "--format=%H", f"--grep=^{line}$")
    if not found or worktree_git(workspace, "diff", "--name-only", found, "--", *_SETTINGS):
        return False
    lock = workspace / "dvc.lock"
    text = only(lock.read_text(encoding="utf-8"), stages) if lock.exists() else ""
    return worktree_git(workspace, "show", f"{found}:dvc.lock").strip() == text.strip()


def tag_run(workspace: Path, name: str, message: str) -> str:
    """Tag the run's last commit as `done/NAME`, a later one as `done/NAME.2`; the tag."""
    at_head = worktree_git(workspace, "tag", "--points-at", "HEAD", "--list", f"done/{name}*")
    if at_head:
        return at_head.splitlines()[-1]
    tag, number = f"done/{name}", 1
    while worktree_git(workspace, "tag", "--list", tag):
        number += 1
        tag = f"done/{name}.{number}"
    worktree_git(workspace, "tag", "--annotate", "--message", message, tag)
    return tag


def _check_out(root: Path, workspace: Path, branch: str, revision: str | None) -> bool:
    """Make the worktree where there is none; whether its branch is new."""
    asked = _commit(root, revision) if revision else None
    worktree_git(root, "worktree", "prune")
    known = worktree_git(root, "branch", "--list", branch)
    if not known:
        start = asked or _commit(root, "HEAD")
        worktree_git(root, "worktree", "add", "--quiet", "-b", branch, str(workspace), start)
        return True
    if asked and asked != worktree_git(root, "merge-base", asked, branch):
        raise WorkspaceError(
            f"name: the run {workspace.name} exists and did not start from {revision}; choose "
            "another name, or leave the revision empty to continue that run"
        )
    if not (workspace / ".git").exists():
        worktree_git(root, "worktree", "add", "--quiet", str(workspace), branch)
    return False


def _commit(root: Path, revision: str) -> str:
    try:
        return worktree_git(
            root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except WorkspaceError:
        raise WorkspaceError(
            f"revision: no branch, tag or commit {revision!r} here (`git fetch` gets those of "
            "others)"
        ) from None


def _choose(root: Path, workspace: Path, choices: Choices) -> None:
    """Write the choices into the workspace's params.yaml, or leave it as it is."""
    path = workspace / "params.yaml"
    if not path.is_file() or not (workspace / "dvc.yaml").is_file():
        raise WorkspaceError("revision: it has no params.yaml or no dvc.yaml")
    before = path.read_text(encoding="utf-8")
    try:
        preset = None if choices.recipe is None else _take_variant(workspace, choices.recipe)
        edit_params(path, _annotators(path, choices.people), rounds=choices.rounds)
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


def _put(workspace: Path, path: str, text: str) -> None:
    """Put a file into the index, or take it out where the text is empty."""
    if not text:
        worktree_git(workspace, "update-index", "--force-remove", path)
        return
    blob = worktree_git(workspace, "hash-object", "-w", "--stdin", stdin=text)
    worktree_git(workspace, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
