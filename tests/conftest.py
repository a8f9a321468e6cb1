"""Fixtures for all tests: one way to compare numbers, one hypothesis profile."""

import contextlib
import gc
import importlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import settings

from rlhf.bits import choose, require_kernels
from tests.portable_bits import BITS

MAX_TOLERANCE = 1e-3

choose(BITS)  # In time, since tests/portable_bits.py has set the variables.
require_kernels()
if BITS == "native":
    # Whoever imports the stages first, as below, chooses by the params.yaml of the folder.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("params.yaml").write_text("run: {bits: native}\n", encoding="utf-8")
        importlib.import_module("tasks")

from tests.pretended_device import deterministic  # noqa: E402

if TYPE_CHECKING:
    from tests.postgres import Postgres

# Collecting garbage among what is imported, and then among it again and again, takes a tenth of the
# time.
gc.disable()

settings.register_profile("repeatable", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("repeatable")
# A job in the background starts with Ctrl-C ignored, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tensors here are tiny: a second thread only waits (7 ms for a log-softmax of 24 numbers).
torch.set_num_threads(1)

AssertClose = Callable[..., None]


def pytest_collection_finish() -> None:
    """Nothing that has been imported goes away: the collector never looks at it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """A stage that ran in this process leaves it without denormals, which hypothesis refuses, and
    with its number of threads, with which sums have other bits."""
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(1)


@pytest.fixture
def as_in_a_stage() -> Iterator[None]:
    """Algorithms are deterministic, which on a GPU are others."""
    with deterministic():
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    """A PostgreSQL server; the test is skipped where none is installed."""
    from tests import postgres as postgresql  # SQLAlchemy, which a lent GPU's machine lacks.

    with postgresql.running() as server:
        yield server


@pytest.fixture(scope="session")
def assert_close() -> AssertClose:
    """`assert_close(actual, expected, rtol=..., atol=...)`: equal shapes, and close in float64.

    It refuses tolerances above 1e-3: a test with a loose tolerance cannot fail. NaN is never close.
    """

    def compare(actual: object, expected: object, *, rtol: float, atol: float) -> None:
        if not (0 <= rtol <= MAX_TOLERANCE and 0 <= atol <= MAX_TOLERANCE):
            raise ValueError(f"tolerances: expected 0 to {MAX_TOLERANCE}, found {rtol=} {atol=}")
        found, wanted = _as_float64(actual), _as_float64(expected)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=False)

    return compare


def _as_float64(value: object) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)
