"""How fast training is, beside TRL's trainers: PPO, SFT, reward training, generation.

    make bench                 # or: python -m benchmarks.speed [--sizes 4M] [--lengths ragged]
    make bench-gpu             # --device cuda; without a GPU a tiny model runs, nothing is written

Both sides get the same models, token ids, lengths, precision and numbers of optimiser steps, and
take turns, each in a process of its own. TRL lives in environments that this makes
(benchmarks/trl_environment.py): PPO in the last release that had it, SFT and reward training in
the current one; `--without-trl` measures us alone. TRL takes the instructions that the processor
has. So do we, unless `--bits portable` asks for those of the pipeline's default, AVX2. `--avx2`
keeps AVX-512 from both, so that a processor which has it stands for those which do not.
`--precision bfloat16` is that of forward passes, on both sides; trained weights stay float32.
On a CPU seconds are CPU seconds of all threads, so that other work on the machine disturbs little;
on a GPU they are by the wall.
Writes `docs/benchmarks/DEVICE-SIZE-MACHINE.json` for each size after each kind of lengths,
`bfloat16` and `portable` behind the size where that was asked for, and, from all of those,
`docs/benchmarks.md`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import positive
from benchmarks.speed_environment import AVX2, with_bits, without_pins
from benchmarks.speed_numbers import CONFINED, short
from benchmarks.speed_page import BITS, DRAWN, PRECISIONS, write_page
from benchmarks.speed_world import LONG, SIZES, responses_of, warming, works_of, write_world
from benchmarks.trl_environment import CURRENT, WITH_PPO, make_environment
from tasks.running.environment import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
LENGTHS = ("uniform", "ragged")
"""On a GPU `long` besides."""


def main() -> int:
    """Measure, keep what was found of a size when it is done, write the page."""
    options = _options()
    device, sizes, keep = options.device, options.sizes, True
    if device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU: a tiny model on the CPU shows that it runs; nothing is written")
        device, sizes, keep = "cpu", ["tiny"], False
    trl = {}
    if not options.without_trl:
        scripts = {WITH_PPO: "speed_trl_ppo.py", CURRENT: "speed_trl.py"}
        trl = {make_environment(ROOT / ".work", one): scripts[one] for one in scripts}
    with tempfile.TemporaryDirectory() as place:
        for size in sizes:
            found: dict[str, Any] = {
                "machine": _machine(options, device),
                "threads": options.threads, "runs": options.runs,
                "trl": {"ppo": WITH_PPO, "sft": CURRENT, "reward": CURRENT},
                "bits": {"ours": options.bits, "trl": "native"}, "precision": options.precision,
                "decoded_by_trl": responses_of(size),
                "ends": DRAWN, "iteration": 1 + warming(device, "ours", size),
                "load": [os.getloadavg()[0]], "rows": [],
            }  # fmt: skip
            for lengths in options.lengths or (LENGTHS if device == "cpu" else (*LENGTHS, LONG)):
                world = Path(place) / size / lengths
                world.mkdir(parents=True)
                _write_world(world, size, lengths, device)
                told = json.loads((world / "rows.json").read_text(encoding="utf-8"))
                rows: dict[str, dict[str, Any]] = {
                    work: {"size": size, "lengths": lengths, "work": work}
                    for work in works_of(size, told)
                }
                beside = {} if lengths == LONG else trl
                for side, results in _turns(world, size, device, options, beside):
                    for work, result in results.items():
                        rows[work].setdefault(side, []).append(result)
                        print(size, lengths, side, work, result, flush=True)
                    require_tokens(side, results, tokens_asked(told, size))
                    found["load"].append(os.getloadavg()[0])
                found["rows"] += rows.values()
                if keep:
                    _keep(found, _name(device, size, options))
    return 0


def _write_world(folder: Path, size: str, lengths: str, device: str) -> None:
    write_world(folder, size, lengths, device)
    if device == "cuda":
        # Else this process keeps, and both sides lack, what the models took (10 GB at 1B).
        torch.cuda.empty_cache()


def _keep(found: dict[str, Any], name: str) -> None:
    """Write what has been measured of a size so far, and the page."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_page(ROOT / "docs" / "benchmarks.md", RESULTS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.6M", "4M", "135M"])
    parser.add_argument(
        "--lengths", nargs="+", choices=(*LENGTHS, LONG),
        help="the file of a size then holds rows of these alone (default: uniform and ragged, "
        "and on a GPU long)",
    )  # fmt: skip
    parser.add_argument("--runs", type=positive, default=3, help="turns of each side (default: 3)")
    parser.add_argument(
        "--threads", type=positive, default=1,
        help="of torch (default: 1); the names of file and machine say so where it is another",
    )  # fmt: skip
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--bits", choices=list(BITS), default="native", help="of our side")
    parser.add_argument(
        "--precision", choices=list(PRECISIONS), default="float32", help="of both sides"
    )
    parser.add_argument("--avx2", action="store_true", help="no AVX-512 for either side")
    parser.add_argument("--without-trl", action="store_true")
    return parser.parse_args()


def _turns(
    world: Path, size: str, device: str, options: argparse.Namespace, trl: dict[Path, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ours and TRL's, in turns; TRL has no PPO with a shared trunk."""
    settings = [str(world), size, device, str(options.threads), options.precision]
    for run in range(options.runs):
        for side, command in commands(trl).items():
            more = [options.bits, *(["--count"] if run == 0 else [])] if side == "ours" else []
            found = _run([*command, *settings, *more], environment_of(side, options))
            yield side.partition(" ")[0], found


def commands(trl: dict[Path, str]) -> dict[str, list[str]]:
    """What runs each side, without its arguments: ours, and TRL's by each of its releases."""
    ours = {"ours": [sys.executable, "-m", "benchmarks.speed_ours"]}
    return ours | {
        f"trl {script}": [str(python), str(ROOT / "benchmarks" / script)]
        for python, script in trl.items()
    }


def environment_of(side: str, options: argparse.Namespace) -> dict[str, str]:
    """The environment of a side's process; the pins of our bits are in ours alone."""
    pinned = with_bits(options.bits) if side == "ours" else without_pins()
    if options.avx2:
        pinned |= AVX2
    return pinned | {"OMP_NUM_THREADS": str(options.threads), "TRL_EXPERIMENTAL_SILENCE": "1"}


def tokens_asked(rows: list[Any], size: str) -> int:
    """Tokens of all responses of a rollout together."""
    return sum(row["length"] or row["most"] for row in rows[: responses_of(size)])


def require_tokens(side: str, results: dict[str, Any], asked: int) -> None:
    """Exit where the responses of a rollout do not have the lengths that were asked of them."""
    for work, result in results.items():
        if "phases" in result and (found := result["phases"]["tokens"]) != asked:
            sys.exit(f"{side}, {work}: {asked} tokens were asked for, but {found:.0f} sampled")


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The JSON object that the command prints last."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _name(device: str, size: str, options: argparse.Namespace) -> str:
    """The file of a measurement: each machine has its own."""
    machine = re.sub(r"[^a-z0-9]+", "-", short(_machine(options, device), options.threads).lower())
    return f"{device}-{size}{PRECISIONS[options.precision]}{BITS[options.bits]}-{machine}.json"


def _machine(options: argparse.Namespace, device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{processor()}, {os.cpu_count()} cores{CONFINED if options.avx2 else ''}"


if __name__ == "__main__":
    sys.exit(main())
