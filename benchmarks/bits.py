"""What portable bits cost: training steps of the default size in both modes, in turns.

    python -m benchmarks.bits [--runs 5] [--threads 1]

Prints the median CPU seconds of an SFT step and of a PPO iteration with portable and with native
bits, and their ratio. Each run is a process of its own, since the libraries choose once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML

from tasks.running.environment import processor

ROOT = Path(__file__).resolve().parents[1]
MODES = ("portable", "native")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bits", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="processes per mode (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    options = parser.parse_args(arguments)
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        places = {mode: workplace(Path(folder) / mode, mode, options.threads) for mode in MODES}
        for _ in range(options.runs):
            for mode in MODES:
                for loop, values in measure(places[mode], mode).items():
                    seconds.setdefault((loop, mode), []).extend(values)
    sys.stdout.write(f"{processor()}, threads {options.threads}, CPU seconds, medians\n")
    for loop, unit in (("sft", "SFT step"), ("ppo", "PPO iteration")):
        portable, native = (statistics.median(seconds[loop, mode]) for mode in MODES)
        sys.stdout.write(
            f"{unit:14} portable {portable:.4f}  native {native:.4f}  ratio {portable / native:.3f}"
            f"  ({len(seconds[loop, 'native'])} of each)\n"
        )
    return 0


def workplace(folder: Path, mode: str, threads: int) -> Path:
    """A folder whose params.yaml is the default with these bits."""
    folder.mkdir()
    yaml = YAML()
    params = yaml.load(ROOT / "params.yaml")
    params["run"] |= {"bits": mode, "threads": threads, "device": "cpu"}
    yaml.dump(params, folder / "params.yaml")
    return folder


def measure(folder: Path, mode: str) -> dict[str, list[float]]:
    """Seconds of each step of each loop, from a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bits_steps"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GOMP_SPINCOUNT": "5000"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    if found["bits"] != mode:
        raise SystemExit(f"asked for {mode} bits, and this machine computes with {found['bits']}")
    seconds: dict[str, list[float]] = found["seconds"]
    return seconds


if __name__ == "__main__":
    sys.exit(main())
