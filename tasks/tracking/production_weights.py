"""Where on this machine the weights of the version in production are.

Those of this workspace, if they are the same bytes; else DVC's cache; else MLflow's own. An alias
whose weights are nowhere here is no reason to take another policy in silence.
"""

import json
from pathlib import Path

from mlflow.entities.model_registry import ModelVersion

from tasks.tracking.promotion import PromotionError, in_production, kept_by_mlflow, policy_path
from tasks.tracking.withdrawn import HASH_TAG
from tasks.workspace.dvc_cache import cache_folder, is_cached, output_hash

LINKS = Path(".work") / "production"
"""Folders of links to the objects of DVC's cache, named after the hash of their model."""


def production_folder(root: Path) -> tuple[Path, str] | None:
    """The model folder of `production` on this disk, and which version and round it is.

    None before the first approval.

    Raises:
        PromotionError: its weights are not on this machine.
    """
    if (version := in_production(root)) is None:
        return None
    about = f"production, version {version.version}, round {version.tags.get('rlhf.round')}"
    if (here := workspace_folder(root, version)) is not None:
        return here, about
    digest = version.tags.get(HASH_TAG, "")
    if is_cached(cache_folder(root), digest):
        return _linked(root, digest), about
    return mlflow_folder(root, version), about


def workspace_folder(root: Path, version: ModelVersion) -> Path | None:
    """The version's folder in this workspace; None where it has other bytes, or is not there."""
    path = version.tags.get("dvc.path") or policy_path(str(version.tags.get("rlhf.round")))
    here = root / path
    same = here.is_dir() and output_hash(here) == version.tags.get(HASH_TAG)
    return here if same else None


def mlflow_folder(root: Path, version: ModelVersion) -> Path:
    """Where MLflow keeps the version's weights on this machine.

    Raises:
        PromotionError: it does not.
    """
    if (kept := kept_by_mlflow(root, version)) is not None:
        return kept
    raise PromotionError(
        f"the weights of version {version.version}, which is in production, are not on this "
        "machine: neither in DVC's cache nor in a local MLflow store; `dvc fetch --all-commits` "
        "brings what was pushed"
    )


def _linked(root: Path, digest: str) -> Path:
    """A folder of links to the cached files of a model: nothing is copied."""
    cache, folder = cache_folder(root), root / LINKS / digest.removesuffix(".dir")
    for file in json.loads((cache / digest[:2] / digest[2:]).read_text(encoding="utf-8")):
        link = folder / file["relpath"]
        cached = (cache / file["md5"][:2] / file["md5"][2:]).resolve()
        if link.is_symlink() and link.readlink() == cached:
            continue  # Somebody else may read by it at this moment.
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(cached)
    return folder
