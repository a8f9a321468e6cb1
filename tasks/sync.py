"""`python -m tasks.sync` (`make sync`): sends to MLflow what has not arrived there yet.

Covers this workspace and its variants: metrics, artifacts, models, and the DVC hashes of the
outputs. Safe to repeat. Exits 0 when everything has arrived, 1 when MLflow did not accept it or its
database is damaged, 2 where a dvc.lock is damaged (metrics and models are sent all the same), or
where nothing of ours is.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tasks.promoting.registration import tag_and_register, unregistered
from tasks.running.amounts import amount
from tasks.running.machine_errors import in_one_line
from tasks.tracking.output_tags import untagged
from tasks.tracking.sent import damage
from tasks.tracking.shipping import ShipResult, ship_all, tracking_uri
from tasks.workspace.dvc_lockfile import DamagedLockError
from tasks.workspace.files import outside_repository
from tasks.workspace.shared_weights import share_idle_outputs
from tasks.workspace.worktrees import workspaces


def sync(root: Path) -> tuple[list[ShipResult], int]:
    """Ship and tag all runs of `root` and its variants; results, and the number of tagged runs.

    Raises:
        DamagedLockError: a dvc.lock cannot be read; everything has been shipped.
    """
    # Variants have folders of their own, but share the MLflow of the main checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    results: list[ShipResult] = []
    tagged = 0
    places = (root, *workspaces(root))
    for workspace in places:
        results += ship_all(workspace)
    for workspace in places:
        tagged += tag_and_register(workspace)
        share_idle_outputs(workspace)
    return results, tagged


@in_one_line
def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tasks.sync", description=__doc__)
    parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    if problem := outside_repository(Path.cwd()):
        sys.stderr.write(f"{problem}\n")
        return 2
    # What sent.json says has arrived there need not be there any more.
    if problem := damage(tracking_uri(Path.cwd())):
        sys.stderr.write(f"{problem}; nothing was sent, `make doctor` says what to do\n")
        return 1
    try:
        results, tagged = sync(Path.cwd())
    except DamagedLockError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    failed = [result for result in results if result.state in ("refused", "unreachable")]
    for result in failed:
        stage = result.folder.parent.name
        sys.stderr.write(f"{stage}: {result.detail} (kept in {result.folder})\n")
    arrived = sum(result.state == "complete" for result in results)
    there = amount(arrived, "run", ("is", "are"))
    sys.stdout.write(f"{there} in MLflow, {tagged} newly tagged with output hashes.\n")
    return 1 if failed or _lacks_hashes_or_versions(Path.cwd()) else 0


def _lacks_hashes_or_versions(root: Path) -> bool:
    """Whether MLflow has refused some, as has been said."""
    return any(
        any(untagged(place)) or any(unregistered(place)) for place in (root, *workspaces(root))
    )


if __name__ == "__main__":
    sys.exit(main())
