"""A plugin of pytest that lets the tests compute with portable bits, as the stages do by default.

`conftest.py` comes too late for it, since jaxtyping's plugin imports NumPy, and that plugin wants
to import `rlhf` itself; so the file is run as it stands, and `conftest.py` chooses once more.
"""

import os
import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().parents[1] / "rlhf/bits.py"))["choose"]("portable")
# Tests that ask for more threads than there are cores would wait for spinning ones.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
