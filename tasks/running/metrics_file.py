"""`metrics.json` and its like: a stage's final metrics, readable and deterministic."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_metrics(folder: Path, metrics: Mapping[str, Any], *, name: str = "metrics.json") -> None:
    """Write the metrics; NaN and infinity are refused, since JSON has neither."""
    text = json.dumps(metrics, ensure_ascii=False, indent=2, allow_nan=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")
