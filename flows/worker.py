"""`python -m flows.worker POOL`: makes this clone one of the machines that run stages of the flow.

Registers the pool and its deployment with Prefect's server, then runs Prefect's own worker. Needs
`PREFECT_API_URL` (and `PREFECT_API_AUTH_STRING`, where the server asks for a password),
`MLFLOW_TRACKING_URI`, git's remote and DVC's.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows import remotes
from flows.environment import environment
from flows.reach import ReachError, require_address, require_prefect
from tasks.workspace.git import GitError

KINDS = {"type": str, "job_variables": dict, "base_job_template": dict}
"""Key of a variant -> what it holds; the last may be absent, where Prefect's own does."""


class WorkerError(Exception):
    """Something that a worker needs is missing; the message says what."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kind of work pool."""

    type: str
    """As Prefect names it."""
    job_variables: Mapping[str, Any] = field(default_factory=dict)
    base_job_template: Mapping[str, Any] | None = None
    """Schema of the variables and the job that is made of them; None: that of the type."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code, where Prefect's worker does not take this process over."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.worker",
        description="Work for a pool of Prefect in this clone: run the stages that a flow orders "
        "there. RLHF_GPU_POOL and RLHF_CPU_POOL name pools to the flow.",
    )
    parser.add_argument("pool", type=_pool, help="any name, such as gpu")
    parser.add_argument("--variant", type=Path, metavar="FILE", help="type of the pool and its "
                        "jobs' variables (deploy/pools); else processes in this clone")  # fmt: skip
    parser.add_argument("--at-once", type=_number, default=1, metavar="N", help="stages at once, "
                        "such as one for each GPU (default: %(default)s)")  # fmt: skip
    parser.add_argument("--register-only", action="store_true", help="start no worker")
    given = parser.parse_args(argv)
    try:
        variant = read_variant(given.variant) if given.variant else Variant("process")
        os.environ.update(worker_environment(Path.cwd()))
        require_remotes(Path.cwd())
        require_address()
        # Imported here: Prefect takes its settings when it is imported.
        from flows.stage_flow import register  # noqa: PLC0415

        require_prefect()
        register(given.pool, variant.type, variant.job_variables, variant.base_job_template)
    except (WorkerError, GitError, ReachError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not given.register_only:
        os.execv(sys.executable, worker_command(given.pool, variant.type, at_once=given.at_once))
    sys.stdout.write(f"The pool {given.pool} ({variant.type}) is registered.\n")
    return 0


def _pool(name: str) -> str:
    """A name that Prefect takes for a pool of ours."""
    if not name or set(name) & set("/%&<>") or name.lower().startswith("prefect"):
        raise argparse.ArgumentTypeError(
            f"{name!r}; expected a name without / % & < >, which does not begin with `prefect`: "
            "those are Prefect's own"
        )
    return name


def _number(text: str) -> int:
    """Of stages that may work at once."""
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r}; expected 1 or more")
    return int(text)


def worker_command(pool: str, kind: str, *, at_once: int) -> list[str]:
    """Prefect's worker for a pool."""
    return [
        sys.executable, "-m", "flows.pool_worker",
        "--pool", pool, "--type", kind, "--limit", str(at_once), "--install-policy", "never",
    ]  # fmt: skip


def worker_environment(clone: Path) -> dict[str, str]:
    """What the worker and the flow runs that it starts see.

    Raises:
        WorkerError: no Prefect server is named.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise WorkerError("PREFECT_API_URL: expected the address of Prefect's server, found none")
    paths = [str(clone), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # Prefect starts a flow run in an empty folder.
    return {
        **environment(clone), "RLHF_CLONE": str(clone), "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip


def require_remotes(clone: Path) -> None:
    """Check what stages come and go by.

    Raises:
        WorkerError: git or DVC has no remote here.
    """
    if remotes.git_remote(clone) is None:
        raise WorkerError(f"{clone}: git has no remote, or several and no remote.pushDefault")
    if not remotes.dvc_remote(clone):
        raise WorkerError(
            f"{clone}: DVC has no default remote; `dvc remote add --default NAME ADDRESS` names one"
        )


def read_variant(path: Path) -> Variant:
    """A file of `deploy/pools`.

    Raises:
        WorkerError: not such a file.
    """
    try:
        record = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, YAMLError) as error:
        raise WorkerError(f"{path}: {' '.join(str(error).split())}") from None
    found = sorted(record) if isinstance(record, dict) else type(record).__name__
    if not isinstance(record, dict) or set(record) | {"base_job_template"} != set(KINDS):
        raise WorkerError(f"{path}: expected the keys type and job_variables, found {found}")
    for key, kind in KINDS.items():
        if not isinstance(value := record.get(key, kind()), kind):
            name = "a mapping" if kind is dict else "a text"
            raise WorkerError(f"{path}: {key}: expected {name}, found {type(value).__name__}")
    return Variant(**record)


if __name__ == "__main__":
    sys.exit(main())
