"""Workspaces of variants as `make repro VARIANT=...` leaves them."""

from pathlib import Path

from tasks.workspace.driver_lock import Driver
from tasks.workspace.variants import variant_workspace


def prepare_workspace(root: Path, name: str) -> Path:
    """Make or refresh one, and let go of it."""
    with variant_workspace(root, name, Driver(name="a test")) as workspace:
        return workspace
