"""The stages of the pipeline: one module per DVC stage, files in, files out."""

import os

# Before torch loads its OpenMP: threads that wait sleep. Where they spin, as is the default, two
# threads on a machine with other work are twenty times slower than one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
