"""What MKL computes: for portable bits the roots of IEEE 754, for native ones as on an Intel."""

import decimal
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf import bits, mkl

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(bits.obstacle() is not None, reason="portable bits need AVX2")


@pytest.fixture(autouse=True)
def portable() -> None:
    mkl.take_kernels()


NUMBERS = torch.rand(64, 33, generator=torch.Generator().manual_seed(0)) * 3


def rounded(x: torch.Tensor) -> list[float]:
    """Python's root of a float32, computed in 40 digits and rounded once."""
    with decimal.localcontext() as context:
        context.prec = 40
        roots = [decimal.Decimal(number).sqrt() for number in x.flatten().tolist()]
    return [float(np.float32(str(root))) for root in roots]


@pytest.mark.parametrize(
    "x", [NUMBERS, NUMBERS.t(), NUMBERS[:, ::2], NUMBERS[0, 0], NUMBERS[:0]],
    ids=["whole", "transposed", "strided", "one", "none"],
)  # fmt: skip
def test_a_root_is_the_nearest_float(x: torch.Tensor) -> None:
    in_place = x.clone()
    in_place.sqrt_()

    for found in (x.sqrt(), in_place, torch._foreach_sqrt([x])[0]):
        assert found.shape == x.shape
        assert found.flatten().tolist() == rounded(x)


def test_a_root_in_float64_is_pythons() -> None:
    x = NUMBERS.double()

    assert x.sqrt().flatten().tolist() == [math.sqrt(number) for number in x.flatten().tolist()]


def test_roots_of_a_part_leave_the_rest() -> None:
    x = NUMBERS.clone()
    x[:, ::2].sqrt_()

    assert torch.equal(x[:, ::2], NUMBERS[:, ::2].sqrt())
    assert torch.equal(x[:, 1::2], NUMBERS[:, 1::2])


def test_the_gradient_of_a_root() -> None:
    x = NUMBERS[0].double().add(0.1).requires_grad_()

    assert torch.autograd.gradcheck(torch.sqrt, (x,))


def test_roots_of_other_types_and_of_no_number() -> None:
    assert torch.arange(10).mul(torch.arange(10)).sqrt().tolist() == list(range(10))
    assert torch.tensor([9.0], dtype=torch.bfloat16).sqrt().dtype == torch.bfloat16
    assert torch.tensor([-4.0 + 0j]).sqrt().tolist() == [2j]
    assert torch.tensor([-1.0, math.nan]).sqrt().isnan().all()
    assert math.copysign(1, torch.tensor(-0.0).sqrt().item()) == -1
    assert torch.tensor(math.inf).sqrt().item() == math.inf


NATIVE = """
import hashlib, json, sys
from rlhf import bits
bits.choose("native")
import torch
from rlhf.compute import make_deterministic
from rlhf import mkl
make_deterministic(int(sys.argv[1]))
draws = torch.Generator().manual_seed(0)
one, other = torch.randn(300, 351, generator=draws), torch.randn(351, 500, generator=draws)
found = one @ other
print(json.dumps({
    "answers": [variable.value for variable in mkl._variables()],
    "gap": float((found.double() - one.double() @ other.double()).abs().max()),
    "hash": hashlib.sha256(found.numpy().tobytes()).hexdigest(),
}))
"""


def native(threads: int) -> dict[str, object]:
    command = [sys.executable, "-c", NATIVE, str(threads)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_native_products_take_an_intels_kernels_whoever_made_the_processor() -> None:
    one, two = native(1), native(2)

    assert one["answers"] == [1, 0]  # An Intel's, and no Zen.
    assert one["gap"] < 351 * 2**-24 * 16
    assert one == two
