"""How the cost of a PPO iteration grows with batch, length, model and rounds.

    python -m benchmarks.scaling [--runs 3]    # make bench does it, too

One number at a time moves away from the 0.6M model, 64 responses and 64 tokens of
`benchmarks.speed`; every point is a process of its own, and the points take turns. A round is
reward training on all pairs so far, 90 new ones a round, and one iteration of PPO. CPU seconds of
all threads, one thread.
Writes `docs/benchmarks/scaling.json`, `scaling.svg` and the page, `docs/benchmarks.md`.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import speed_ours
from benchmarks import speed_world as world
from benchmarks.arguments import positive
from benchmarks.scaling_page import draw
from benchmarks.speed_page import write_page
from benchmarks.speed_processes import apart
from rlhf.compute import Compute, keep_all_freed_memory, make_deterministic
from rlhf.models import load_policy
from tasks.running.environment import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "benchmarks"
SMALL = world.SIZES["0.6M"]
BASE: dict[str, Any] = {"responses": 64, "answer": 64, "shape": SMALL, "rounds": 0}
PAIRS = 90
"""New pairs of a round: 1.4 for each response of PPO, as in the default recipe."""
AXES: dict[str, list[dict[str, Any]]] = {
    "responses": [{"responses": count} for count in (16, 32, 64, 128, 256)],
    "response tokens": [{"answer": count} for count in (16, 32, 64, 128, 256)],
    "parameters": [
        {"shape": SMALL | {"width": width, "mlp": mlp, "layers": layers, "heads": heads}}
        for width, mlp, layers, heads in (
            (64, 192, 2, 2), (128, 384, 2, 4), (192, 512, 3, 6), (256, 688, 4, 4), (384, 1024, 6, 6)
        )
    ],
    "rounds": [{"rounds": count} for count in (1, 2, 3, 4)],
}  # fmt: skip


def main() -> int:
    """Measure every point `--runs` times in turns; write results, plot and page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--runs", type=positive, default=3, help="turns of each point (default: 3)")
    runs = parser.parse_args().runs
    points = [
        {"axis": axis, **BASE, **change, "seconds": []} for axis in AXES for change in AXES[axis]
    ]
    load = [os.getloadavg()[0]]
    for run in range(runs):
        for point in points:
            found = apart(partial(_measure, point))
            point["value"] = found["value"]
            point["seconds"].append(found["seconds"])
            print(run + 1, point["axis"], point["value"], f"{found['seconds']:.2f} s", flush=True)
            load.append(os.getloadavg()[0])
    found = {"machine": f"{processor()}, {os.cpu_count()} cores", "runs": runs, "load": load,
             "points": [{name: point[name] for name in ("axis", "value", "seconds")}
                        for point in points]}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scaling.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(found, RESULTS / "scaling.svg")
    write_page(ROOT / "docs" / "benchmarks.md", RESULTS)
    return 0


def _measure(point: dict[str, Any]) -> dict[str, float]:
    """In a child of its own, whose sizes are this point's."""
    world.ANSWER = point["answer"]
    world.STEPS = 1 + point["rounds"] * PAIRS // world.BATCH
    world.SIZES["point"] = {**point["shape"], "responses": point["responses"]}
    make_deterministic(1)
    compute, clock = Compute(torch.device("cpu"), "float32"), world.Clock("cpu")
    keep_all_freed_memory()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        world.write_world(folder, "point", "uniform")
        rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
        iterations = speed_ours.ppo_iterations(folder, rows, "point", compute, "ppo-separate")
        began = clock.now()
        next(iterations)
        if pairs := rows[: point["rounds"] * PAIRS]:
            for _ in speed_ours.reward_steps(folder, pairs, compute):
                pass
        seconds = clock.now() - began
        policy = load_policy(folder / "policy", compute.device)
    # Tied weights count once.
    parameters = sum(weight.numel() for weight in policy.parameters())
    value = {"responses": point["responses"], "response tokens": point["answer"],
             "parameters": parameters, "rounds": point["rounds"]}[point["axis"]]  # fmt: skip
    return {"seconds": seconds, "value": value}


if __name__ == "__main__":
    sys.exit(main())
