"""Which stage wrote which bytes: `dvc.lock` of a revision, and of all other commits behind it.

A file keeps its path and changes its content, so a model is followed back through hashes. Where
`dvc.lock` names another hash today than the one a model was made from (its data have been written
anew since), the commit that has it is looked up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tasks.tracing.contents import ContentError, Contents
from tasks.workspace.dvc_lockfile import DamagedLockError, hashes, not_empty, parsed
from tasks.workspace.files import outside_repository
from tasks.workspace.git import GitError, git

LOCK, PARAMS = "dvc.lock", "params.yaml"


class RecordError(Exception):
    """What was asked for is in no `dvc.lock`; the message says what was looked for, and where."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a stage, as a `dvc.lock` records it."""

    stage: str
    deps: Mapping[str, str]
    """Path -> md5."""
    outs: Mapping[str, str]
    params: Mapping[str, Any]
    """Dotted key or section -> value."""


class Records:
    """The runs of stages that a revision knows, and those that other commits know."""

    def __init__(self, root: Path, contents: Contents, revision: str | None = None) -> None:
        """Reads `dvc.lock` of the workspace, or of a revision.

        Raises:
            RecordError: there is no such revision, or nothing has run there.
        """
        self._root, self._contents = root, contents
        self._revision = revision
        self.now = runs_of(root, revision)
        if not self.now:
            nothing = f"{root / LOCK}: nothing has run here yet"
            if revision is not None:
                nothing = f"{revision}:{LOCK}: nothing had run by this commit"
            raise RecordError(outside_repository(root) or nothing)
        self._others: list[list[Ran]] | None = None

    def params(self) -> dict[str, Any]:
        """`params.yaml` of the revision, as it is.

        Raises:
            RecordError: it is no mapping in YAML.
        """
        text = _text(self._root, self._revision, PARAMS)
        where = PARAMS if self._revision is None else f"{self._revision}:{PARAMS}"
        try:
            values = YAML(typ="safe").load(text) or {}
        except YAMLError as error:
            raise RecordError(f"{where}: not YAML ({' '.join(str(error).split())})") from None
        if not isinstance(values, dict):
            raise RecordError(f"{where}: expected a mapping, found {type(values).__name__}")
        return values

    def models(self) -> dict[str, str]:
        """Every model among the outputs: path -> hash, in the order of the stages."""
        return {
            path: digest
            for ran in self.now
            for path, digest in ran.outs.items()
            if path.startswith("models/")
        }

    def all_models(self) -> dict[str, str]:
        """Hash -> path of every model that this revision or any commit names."""
        return {
            digest: path
            for runs in (*self.others(), self.now)
            for ran in runs
            for path, digest in ran.outs.items()
            if path.startswith("models/")
        }

    def named_in(self) -> dict[str, list[str]]:
        """Hash of a model -> the branches and tags whose last commit names it."""
        found: dict[str, list[str]] = {}
        listed = git(self._root, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags")
        for ref in listed.splitlines():
            outs = (out for ran in self._readable(ref) for out in ran.outs.items())
            for digest in {digest for path, digest in outs if path.startswith("models/")}:
                found.setdefault(digest, []).append(ref.split("/", 2)[2])
        return found

    def writer(self, path: str, digest: str) -> Ran | None:
        """The run that wrote these bytes to this path; None for a file that no stage writes.

        Raises:
            RecordError: a stage writes this path, but no record names these bytes.
            ContentError: a record may name them by a folder whose list of files is not here.
        """
        unread: list[ContentError] = []
        if (found := self._among(self.now, path, digest, unread)) is not None:
            return found
        for runs in self.others():
            if (found := self._among(runs, path, digest, unread)) is not None:
                return found
        if unread:  # of the revision itself before those of other commits
            raise unread[0]
        # Also of a round that there was once: to pass over it would lose what formed the model.
        known = (out for runs in (self.now, *self.others()) for ran in runs for out in ran.outs)
        if not any(_below(path, out) is not None for out in known):
            return None
        raise RecordError(
            f"{path} with md5 {digest}: no {LOCK}, of this revision or of any other commit, says "
            "which stage wrote it; commit dvc.lock after each run"
        )

    def others(self) -> Iterator[list[Ran]]:
        """What all other commits record: first those behind the revision, each the newest first."""
        if self._others is None:
            behind = recorded_in(self._root, self._revision or "HEAD")
            everywhere = recorded_in(self._root, "--all")
            self._others = [
                runs
                for commit in dict.fromkeys([*behind, *everywhere])
                if (runs := self._readable(commit))
            ]
        yield from self._others

    def _readable(self, commit: str) -> list[Ran]:
        # One commit with a damaged file, years ago, must not hide what the others say.
        try:
            return runs_of(self._root, commit)
        except RecordError:
            return []

    def _among(
        self, runs: list[Ran], path: str, digest: str, unread: list[ContentError]
    ) -> Ran | None:
        for ran in runs:
            for out, found in ran.outs.items():
                below = _below(path, out)
                if below is None:
                    continue
                if below == "":
                    if found == digest:
                        return ran
                    continue
                try:
                    if self._contents.part(out, found, below) == digest:
                        return ran
                except ContentError as error:
                    unread.append(error)
        return None


def runs_of(root: Path, revision: str | None) -> list[Ran]:
    """The runs that `dvc.lock` of the workspace records, or that of a revision; none without one.

    Raises:
        RecordError: there is no such revision, or the file is damaged.
    """
    text, where = _text(root, revision), LOCK if revision is None else f"{revision}:{LOCK}"
    if revision is None and (root / LOCK).exists():
        try:
            not_empty(text)
        except DamagedLockError as error:
            raise RecordError(f"{where}: {error}") from None
    return _runs(text, where)


def recorded_in(root: Path, *commits: str) -> list[str]:
    """The commits of a revision, or of `--all` branches and tags, that change dvc.lock.

    `commits` are what `git log` calls a revision range. `--all` has what `git stash` holds, too.
    """
    try:
        # Else git leaves out what was run on a branch whose dvc.lock a merge did not take.
        listed = git(root, "log", "--full-history", "--format=%H", *commits, "--", LOCK)
    except GitError:
        return []
    return listed.split()


def _text(root: Path, revision: str | None, name: str = LOCK) -> str:
    try:
        if revision is None:
            path = root / name
            return path.read_text(encoding="utf-8") if path.exists() else ""
        return git(root, "show", f"{revision}:{name}")
    except UnicodeDecodeError as error:
        where = name if revision is None else f"{revision}:{name}"
        raise RecordError(f"{where}: expected UTF-8, found {error.reason}") from None
    except GitError as error:
        if name != LOCK or revision is None or _is_commit(root, revision):
            return ""
        raise RecordError(str(error)) from None


def _is_commit(root: Path, revision: str) -> bool:
    try:
        git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except GitError:
        return False
    return True


def _below(path: str, out: str) -> str | None:
    """The rest of a path below an output, empty if it is the output, None if it is elsewhere."""
    if path == out:
        return ""
    return path.removeprefix(f"{out}/") if path.startswith(f"{out}/") else None


def _runs(text: str, where: str) -> list[Ran]:
    try:
        entries = parsed(text)
    except DamagedLockError as error:
        raise RecordError(f"{where}: {error}") from None
    return [
        Ran(
            name,
            hashes(entry.get("deps")),
            hashes(entry.get("outs")),
            (entry.get("params") or {}).get("params.yaml") or {},
        )
        for name, entry in entries.items()
    ]
