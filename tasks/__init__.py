"""The stages of the pipeline: one module per DVC stage, files in, files out."""

import gc
import os
import time

STARTED_NS = time.time_ns()
"""Before any other module is imported: code that is edited later may not be the code that runs."""

if "DVC_STAGE" in os.environ:
    # Before the stage's own imports: for seconds nobody would notice there that DVC has died.
    from tasks.running.signals import die_with_parent

    die_with_parent()
    # OpenMP reads it when torch is imported. Threads that wait spin briefly, then sleep: two that
    # only spin collapse beside other work, and two that sleep at once are a quarter slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    # MKL: the same bits with one thread and with two.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    # What is imported stays; to look for garbage in it takes a tenth of the time. `run_stage` looks
    # for garbage again.
    gc.disable()
