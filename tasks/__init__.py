"""The stages of the pipeline: one module per DVC stage, files in, files out."""

import os

if "DVC_STAGE" in os.environ:
    # Before the stage's own imports: for seconds nobody would notice there that DVC has died.
    from tasks.signals import die_with_parent

    die_with_parent()
