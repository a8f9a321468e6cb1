"""What a stage runs on: the packages, the processor, the device, and which bits these give.

A stage's outcome, its checkpoints and its MLflow run name all of it; no output does.
"""

import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlhf.bits import BitsInEffect
from tasks.params.loading import RunParams

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")

_CPUINFO = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/version")


def describe_environment(run: RunParams, bits: BitsInEffect) -> dict[str, Any]:
    """Everything that a result may depend on beside code, data and params, and the processor."""
    return {
        "bits": bits,
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "processor": processor(),
        **{name: version(name) for name in PACKAGES},
        "threads": run.threads,
        "processes": run.processes,
        **({"sharded": True} if run.sharded else {}),
        "precision": run.precision,
        **_device(run),
    }


def deciding(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part that decides the bytes: with portable bits on a CPU any processor gives the same.

    So do the number of processes and how they hold weights, but a checkpoint of others may be used.
    """
    spared = {"processes", "sharded"} | (
        {"processor"} if environment["bits"] == "portable" else set()
    )
    return {name: value for name, value in environment.items() if name not in spared}


def processor() -> str:
    """The processor's model; where it is unnamed, the family and model numbers say more."""
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.exists() else []
    first = lines[: lines.index("")] if "" in lines else lines
    pairs = (line.partition(":") for line in first)
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


def _device(run: RunParams) -> dict[str, Any]:
    """The device, and of a GPU its model, its driver and CUDA's version.

    A stage that has not loaded torch computes nothing with it, so no GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or run.device == "cpu" or not torch.cuda.is_available():
        return {"device": "cpu"}
    return {
        "device": "cuda",
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str:
    """The version in NVIDIA's own words, such as 550.54.15."""
    text = _DRIVER.read_text(encoding="utf-8") if _DRIVER.exists() else ""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return found.group(1) if found else "unknown"
