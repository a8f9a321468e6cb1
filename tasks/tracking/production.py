"""Asks MLflow for the policy in production from a process of its own, beside other work.

    python -m tasks.tracking.production

MLflow takes two seconds to import, which whoever asks can spend on something else. Prints one JSON
object: `folder` and `about`, or neither, or the `problem`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

CANNOT_SAY = "MLflow cannot say which policy is in production"
CODE = Path(__file__).resolve().parents[2]


class UnknownError(Exception):
    """MLflow does not say, or the weights are not here; the message says which and why."""


class Question:
    """Which policy is in production, asked when this is made."""

    def __init__(self, root: Path) -> None:
        """Ask about the repository at `root`."""
        self._asked = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.tracking.production"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(CODE)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self) -> tuple[Path, str] | None:
        """The model folder and what it is, as `production_weights.production_folder` has it.

        Raises:
            UnknownError: MLflow does not say, or the weights are not on this machine.
        """
        said, _ = self._asked.communicate()
        if self._asked.returncode != 0:
            code = self._asked.returncode
            raise UnknownError(f"{CANNOT_SAY} (the process that asked ended with {code})")
        found = json.loads(said.strip().splitlines()[-1])
        if "problem" in found:
            raise UnknownError(found["problem"])
        return (Path(found["folder"]), found["about"]) if found else None


def main() -> int:
    """Print the answer."""
    # These import MLflow, which whoever asks must not.
    from mlflow.exceptions import MlflowException  # noqa: PLC0415

    from tasks.tracking.production_weights import production_folder  # noqa: PLC0415
    from tasks.tracking.promotion import PromotionError  # noqa: PLC0415

    found: dict[str, str] = {}
    try:
        if (production := production_folder(Path.cwd())) is not None:
            found = {"folder": str(production[0]), "about": production[1]}
    except MlflowException as error:
        reason = str(error).partition("\n")[0][:200]
        found = {"problem": f"{CANNOT_SAY} ({reason})"}
    except PromotionError as error:
        found = {"problem": str(error)}
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
