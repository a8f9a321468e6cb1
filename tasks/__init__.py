"""The stages of the pipeline: one module per DVC stage, files in, files out."""

import gc
import os
import time
from pathlib import Path

STARTED_NS = time.time_ns()
"""Taken before any other import: code edited after this time may not be the code that runs."""

if "DVC_STAGE" in os.environ or "RANK" in os.environ:
    # Before the stage's own imports: they take seconds.
    from tasks.running.signals import interruptible_import

    interruptible_import()

if "DVC_STAGE" in os.environ:
    # DVC's death would go unnoticed meanwhile.
    from tasks.running.signals import die_with_parent

    die_with_parent()
    # Imported modules stay in memory; collecting garbage among them would take a tenth of the time.
    # `run_stage` turns the collector on again.
    gc.disable()

# OpenMP reads this when torch is loaded, in `make chat` or a stage started by hand too. Waiting
# threads spin briefly, then sleep: pure spinning is very slow beside other work (an answer beside
# two jobs takes three times as long), and sleeping immediately is a quarter slower.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Torch and NumPy read its effect when they are loaded.
from tasks.running.bits import choose_bits  # noqa: E402

choose_bits(Path("params.yaml"))

if "DVC_STAGE" in os.environ:
    # Nothing has been imported yet that another process could have imported before.
    from tasks.running.forked import let_fork_server_run

    let_fork_server_run()
