"""Keeps passwords and tokens out of what is written down: messages, records, MLflow."""

import os
import re
from collections.abc import Mapping
from typing import Any

_SECRET_NAME = re.compile(
    "TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_KEY|_KEY$|CREDENTIAL|NOTIFY_URL", re.I
)
_USER_INFO = re.compile(r"(\w+://)[^/@\s'\"]+@")
HIDDEN = "***"


def redact(text: str) -> str:
    """`text` without the user and password of addresses, and without secrets of the environment.

    A secret is the value, of eight characters or more, of a variable whose name says so.
    """
    text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    for name, value in os.environ.items():
        # A line break at the end is escaped where Python quotes the value.
        if _SECRET_NAME.search(name) and len(value := value.strip()) >= 8:
            text = text.replace(value, HIDDEN)
    return text


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping with every text in it redacted."""
    return {key: _redact_value(value) for key, value in values.items()}


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return redact_values(value)
    if isinstance(value, list | tuple):
        return type(value)(_redact_value(inner) for inner in value)
    return value
