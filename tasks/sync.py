"""`python -m tasks.sync` (`make sync`): sends to MLflow whatever has not arrived there yet.

Runs of this workspace and of its variants: metrics, artifacts, models, and the DVC hashes of the
outputs. Harmless to repeat. Exits 0 when everything has arrived, 1 when MLflow did not take it.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

from tasks.tracking.output_tags import tag_outputs
from tasks.tracking.shipping import ShipResult, ship_all, tracking_uri
from tasks.workspace.variants import workspaces


def sync(root: Path) -> tuple[list[ShipResult], int]:
    """Ship and tag all of `root` and its variants; the results and how many runs were tagged."""
    # Variants have their own folders, but one MLflow: that of the main checkout.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(root)
    results: list[ShipResult] = []
    tagged = 0
    for workspace in (root, *workspaces(root)):
        results += ship_all(workspace)
        tagged += tag_outputs(workspace)
    return results, tagged


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tasks.sync", description=__doc__)
    parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    results, tagged = sync(Path.cwd())
    failed = [result for result in results if result.state in ("refused", "unreachable")]
    for result in failed:
        stage = result.folder.parent.name
        sys.stderr.write(f"{stage}: {result.detail} (kept in {result.folder})\n")
    arrived = sum(result.state == "complete" for result in results)
    sys.stdout.write(f"{arrived} runs are in MLflow, {tagged} newly tagged with output hashes.\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
