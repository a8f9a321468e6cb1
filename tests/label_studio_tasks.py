"""Tasks as Label Studio exports them."""

from typing import Any


def studio_task(*answers: tuple[int | str, str | None]) -> dict[str, Any]:
    """A task whose annotations are (who, "left", "right", or None for a cancelled one)."""
    annotations = [
        {
            "completed_by": {"id": who},
            "was_cancelled": side is None,
            "result": [{"value": {"selected": side}}] if side else [],
        }
        for who, side in answers
    ]
    return {
        "data": {"prompt": "p", "response_a": "x", "response_b": "y"},
        "annotations": annotations,
    }
