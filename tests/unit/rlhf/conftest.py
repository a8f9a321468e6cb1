"""What every test of the algorithms takes for granted of the processor."""

import pytest

from rlhf import tile_products


@pytest.fixture(autouse=True)
def without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 is autocast's, with AMX too; `test_tile_products.py` tests the other."""
    monkeypatch.setattr(tile_products, "exist", lambda: False)
