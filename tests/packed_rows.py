"""Packed rows as a CPU has them, and as a GPU has: a test with the fixture runs with both.

packed_as = pytest.fixture(params=packed_rows.KINDS)(packed_rows.packed_as)
"""

import pytest

from rlhf import attention_masks, packing

KINDS = ("by itself", "masked")
"""All sequences in one row, each attending by itself; or several rows, padded, with a mask."""


def packed_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack as the parameter says, whatever the device."""
    if request.param == "masked":
        with_masks(monkeypatch)


def with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack as a GPU needs it."""
    for module in (attention_masks, packing):
        monkeypatch.setattr(module, "can_attend_within", lambda trunk, device: False)
