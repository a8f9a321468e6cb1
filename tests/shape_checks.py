"""A plugin of pytest that checks every call of a module with tensor shapes against its annotations.

Those are the modules that import `rlhf.shapes`. The checks cost a test of a training step half of
its time, so modules without shapes are left to mypy.
"""

import re
from pathlib import Path

from jaxtyping import install_import_hook

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = re.compile(r"^from rlhf\.shapes import", re.MULTILINE)


def modules_with_shapes() -> list[str]:
    """Their dotted names, in order."""
    paths = sorted((ROOT / "rlhf").rglob("*.py"))
    found = [path for path in paths if IMPORTS.search(path.read_text(encoding="utf-8"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found]


install_import_hook(modules_with_shapes(), "beartype.beartype")
