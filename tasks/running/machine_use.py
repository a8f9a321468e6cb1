"""How much of the machine a stage uses, as curves beside its own in MLflow.

The keys are those under which MLflow's page has a tab of its own.
"""

import contextlib
import csv
import os
import subprocess
import threading
from collections.abc import Iterator

import psutil

from tasks.tracking.spool import Spool

EVERY_SECONDS = 10.0
QUERY = "index,utilization.gpu,memory.used,power.draw"
GPU_KEYS = (
    ("utilization_percentage", 1.0),
    ("memory_usage_megabytes", 1.048576),
    ("power_usage_watts", 1.0),
)
"""MLflow's name -> its unit in nvidia-smi's (which says MiB)."""


class MachineUse:
    """A thread that measures until it is closed; a short stage is measured once, at its end."""

    def __init__(self, spool: Spool, *, gpu: bool) -> None:
        """Start the thread.

        Args:
            spool: gets the measurements.
            gpu: ask nvidia-smi as well.
        """
        self._spool = spool
        self._gpu = gpu
        self._process = psutil.Process()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="machine use", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Measure once more, and end."""
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        # What cannot be measured disturbs no stage.
        with contextlib.suppress(OSError, psutil.Error):
            self._measure()  # Shares of a processor are those since the last call.
            going_on = True
            while going_on:
                going_on = not self._end.wait(EVERY_SECONDS)
                self._spool.log_system(self._measure())

    def _measure(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "process_cpu_percentage": self._process.cpu_percent(),
            "process_memory_megabytes": self._process.memory_info().rss / 1e6,
            **(dict(_gpus()) if self._gpu else {}),
        }
        return {f"system/{key}": value for key, value in found.items()}


def _gpus() -> Iterator[tuple[str, float]]:
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    if ours := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={ours}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return
    for index, *values in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        for (key, unit), value in zip(GPU_KEYS, values, strict=True):
            # Some GPUs do not say it: `[N/A]`.
            with contextlib.suppress(ValueError):
                yield f"gpu_{index}_{key}", float(value) * unit
