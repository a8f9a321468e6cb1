"""A plugin of pytest that lets the tests compute with portable bits, as the stages do by default.

`conftest.py` comes too late for it, since the plugin `shape_checks` imports NumPy, and is to see
`rlhf` imported; so the file is run as it stands, and `conftest.py` chooses once more.
RLHF_TEST_BITS=native is for machines that cannot compute portable ones, as many with a GPU: the
tests marked `gpu` need none.
"""

import os
import runpy
from pathlib import Path

BITS = os.environ.get("RLHF_TEST_BITS", "portable")

runpy.run_path(str(Path(__file__).resolve().parents[1] / "rlhf/bits.py"))["choose"](BITS)
# Tests that ask for more threads than there are cores would wait for spinning ones.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
