"""The branch of a run: a commit for each round, a tag at the end, pushed where there are remotes.

A commit holds dvc.lock with the entries of the stages that have run, params.yaml as it was used,
and `metrics/`. A clone of it gets the same outputs by `dvc pull`, or makes them by `dvc repro`.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.artifacts import results_until
from flows.remotes import absent_folder, dvc, dvc_remote, git_remote
from tasks.reporting.headline import write_headline
from tasks.tracking.shipping import quiet_mlflow, tracking_uri
from tasks.workspace.git import GitError
from tasks.workspace.runs import METRICS, branch_of, commit_run, is_committed, tag_run
from tasks.workspace.worktrees import WorkspaceError, remote_git

REPORT = "report"
"""The stage that writes `metrics/`."""


class PushError(Exception):
    """Something has not reached its remote; the message says what to do."""


class RunBranch:
    """What a run keeps in git, beside what DVC and MLflow keep of it."""

    def __init__(self, workspace: Path, flow_run: str) -> None:
        """Of the run whose workspace this is."""
        self._workspace = workspace
        self._flow_run = flow_run
        self._stages: list[str] = []

    def start(self) -> None:
        """Commit the params of the run, so that the commit its stages see is clean."""
        trailers = {"Flow-Run": self._flow_run}
        subject = f"Params of the run {self._workspace.name}"
        commit_run(self._workspace, subject, files={}, stages=None, trailers=trailers)
        if problem := absent_folder(self._workspace):
            get_run_logger().warning("%s. What this run makes cannot be pushed without.", problem)

    def end_round(self, key: str, stages: Sequence[str], results: Mapping[str, Any]) -> None:
        """Commit and push what the run has done by the end of a round, where that is new."""
        subject = f"Round {key} of the run {self._workspace.name}"
        if is_committed(self._workspace, subject, stages):
            return
        self._commit(subject, stages, _headline(results_until(results, key)))
        try:
            self._push([branch_of(self._workspace.name)])
        except PushError as error:
            get_run_logger().warning("%s", error)

    def end(self, stages: Sequence[str], results: Mapping[str, Any]) -> None:
        """Commit what the run has done, once all that was wanted is there."""
        written = self._workspace / METRICS
        files = (
            {path.relative_to(written).as_posix(): path.read_text(encoding="utf-8")
             for path in sorted(written.rglob("*.json"))}
            if REPORT in stages
            else _headline(results)
        )  # fmt: skip
        self._commit(f"End of the run {self._workspace.name}", stages, files)

    def finish(self, state: State[None]) -> State[None]:
        """Tag and push what ended well; the state says so where a remote could not be reached."""
        if state.name != "Completed":
            return state
        name = self._workspace.name
        tag = tag_run(self._workspace, name, f"The run {name}: {state.message}")
        message = f"{state.message} Branch {branch_of(name)}, tag {tag}."
        try:
            self._push([branch_of(name), tag])
        except PushError as error:
            return Completed(name="NotPushed", message=f"{message} {error}")
        return Completed(message=message)

    def _commit(self, subject: str, stages: Sequence[str], files: Mapping[str, str]) -> None:
        self._stages = list(stages)
        trailers = {"Flow-Run": self._flow_run, "MLflow-Run": self._mlflow_run()}
        commit = commit_run(self._workspace, subject, files=files, stages=stages, trailers=trailers)
        get_run_logger().info("%s: commit %s", subject, commit[:12])

    def _mlflow_run(self) -> str:
        """Id of the parent run; empty where MLflow does not respond."""
        quiet_mlflow()
        # Imported here: MLflow takes 1.5 s, in which the first stages run.
        from tasks.tracking.send import TrackingError, parent_run  # noqa: PLC0415

        try:
            return parent_run(self._workspace, self._flow_run, uri=tracking_uri(self._workspace))
        except TrackingError as error:
            get_run_logger().warning("The commit does not name its MLflow run: %s", error)
            return ""

    def _push(self, references: Sequence[str]) -> None:
        """Push data, then the commits that name them: nobody gets a commit without its data."""
        if not dvc_remote(self._workspace):
            return
        arguments = ("push", "--quiet", *self._stages)
        if dvc(self._workspace, self._flow_run, *arguments, logger=get_run_logger()):
            raise PushError(f"`dvc push` failed; {self._by_hand(references)}.")
        try:
            if remote := git_remote(self._workspace):
                remote_git(self._workspace, "push", "--quiet", remote, *references)
        except (GitError, WorkspaceError) as error:
            raise PushError(f"{error}; {self._by_hand(references)}.") from None

    def _by_hand(self, references: Sequence[str]) -> str:
        return (
            f"by hand, in {self._workspace}: `dvc push {' '.join(self._stages)}`, then "
            f"`git push REMOTE {' '.join(references)}`"
        )


def _headline(results: Mapping[str, Any]) -> dict[str, str]:
    """The files of `metrics/` as the report will write them, as far as the run has come."""
    with tempfile.TemporaryDirectory() as folder:
        write_headline(Path(folder), results)
        written = {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).rglob("*.json"))
        }
    return (
        written
        if results["test"]
        else {name: text for name, text in written.items() if name != "final.json"}
    )
