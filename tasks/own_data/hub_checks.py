"""Whether what params.yaml names on Hugging Face's hub is here or can be fetched."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

HUB_SECONDS = 5.0
"""How long to wait for the hub to respond."""

Problem = tuple[str, str]
"""Key of params.yaml, and what is wrong."""


def hub_problems(
    key: str, name: str, revision: str, kind: Literal["model", "dataset"]
) -> Iterator[Problem]:
    """A model that is neither in Hugging Face's local cache nor available from the hub now."""
    from huggingface_hub import HfApi, constants, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        snapshot_download(name, revision=revision, repo_type=kind, local_files_only=True)
        return
    except HFValidationError:
        yield key, f"{name}: neither a file or folder here nor a valid id on the hub"
        return
    except OSError:  # Not in the cache.
        pass
    # `datasets` has a cache of its own for what it has made of a data set.
    made = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets"
    if kind == "dataset" and (Path(made) / name.replace("/", "___").lower()).is_dir():
        return
    try:
        HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=HUB_SECONDS)
    except HfHubHTTPError as error:
        yield key, f"{name} at {revision}: the hub refused: {' '.join(str(error).split())[:200]}"
    except Exception as error:  # Each kind of network failure raises a different exception.
        fetch = f"hf download {name} --revision {revision}"
        fetch += " --repo-type dataset" if kind == "dataset" else ""
        yield (
            key,
            f"{name} at {revision}: no folder here, not in Hugging Face's cache "
            f"({constants.HF_HUB_CACHE}), and the hub cannot be reached ({type(error).__name__}); "
            f"name a folder, or fetch it where there is a network: {fetch}",
        )
