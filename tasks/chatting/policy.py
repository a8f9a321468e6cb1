"""Which policy responds: the one named, the one in production, or the last one trained."""

import os
from pathlib import Path

from tasks.tracking.production import Question, UnknownError
from tasks.tracking.sent import DEFAULT_STORE
from tasks.workspace.files import home

SFT = Path("models") / "sft"


class ChatError(Exception):
    """There is nobody to talk to; the message says what to do."""


def ask_production(root: Path) -> Question | None:
    """The question which policy is in production; None where nobody has promoted one here."""
    if os.environ.get("MLFLOW_TRACKING_URI") or (home(root) / DEFAULT_STORE).is_file():
        return Question(root)
    return None


def choose_policy(root: Path, named: Path | None, asked: Question | None) -> tuple[Path, str]:
    """The folder of the policy, and what it is.

    Args:
        root: of the repository.
        named: the policy of the command line.
        asked: the question which policy is in production.

    Raises:
        ChatError: there is none.
    """
    if named is not None:
        return root / named, named.as_posix()
    if asked is not None:
        try:
            production = asked.answer()
        except UnknownError as error:
            raise ChatError(
                f"{error}; or name a policy: make chat POLICY=models/rounds/r1/policy"
            ) from None
        if production is not None:
            folder, about = production
            shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
            return folder, f"{shown.as_posix()} ({about})"
    last = last_policy(root)
    return root / last, last.as_posix()


def last_policy(root: Path) -> Path:
    """The policy of the last round in params.yaml that has one.

    Raises:
        ChatError: no round has.
    """
    from tasks.params.loading import read_yaml  # noqa: PLC0415 (pydantic: a third of a second)

    rounds = read_yaml(root / "params.yaml").get("rounds")
    paths = [Path("models/rounds") / str(key) / "policy" for key in rounds or ()]
    found = [path for path in paths if (root / path / "config.json").is_file()]
    if not found:
        sft = f"; or talk to SFT: make chat POLICY={SFT}" if (root / SFT).is_dir() else ""
        raise ChatError(f"no policy yet: `make repro` trains one{sft}")
    return found[-1]
