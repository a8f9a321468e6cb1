"""A tiny finished run whose round has been measured, for the experiments that start from one."""

import json
from pathlib import Path

from tests import stage_world
from tests.integration.test_best_of_n import evaluate


def measured_run(root: Path) -> Path:
    """Make it in `root`; the figures of its policy are invented."""
    stage_world.build(root)
    evaluate(root)
    estimate = {"mean": 9.5, "low": 9.0, "high": 10.0, "n": 10}
    measured = dict.fromkeys(("gold", "win_rate_vs_sft", "kl"), estimate)
    (root / "results/evaluate/r1/metrics.json").write_text(json.dumps(measured))
    return root
