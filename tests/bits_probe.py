"""Prints a hash of each kind of operation whose bits may depend on the processor, as JSON.

    python tests/bits_probe.py [THREADS] [VARIABLE ...]

Computes with the portable pins of `rlhf.bits`, without the variables that are named; without
`rlhf.mkl` where "mkl" is among them.
"""

import hashlib
import json
import os
import sys

from rlhf import bits

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 1

bits.choose("portable")
for variable in sys.argv[2:]:
    os.environ.pop(variable, None)

import numpy as np  # noqa: E402 (after the pins)
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from rlhf.mkl import take_kernels  # noqa: E402


def main() -> None:
    """Compute and print."""
    if "mkl" not in sys.argv[2:]:
        take_kernels()
    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    results = {**of_torch(), **of_numpy()}
    json.dump({name: digest(values) for name, values in results.items()}, sys.stdout)


def of_torch() -> dict[str, np.ndarray]:
    """Made of uniform numbers, which are scaled whole numbers, so the same everywhere."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.rand(*shape, generator=generator) - 0.5) * 3

    x, tall, wide, heads = draw(1536, 1536), draw(1536, 128), draw(128, 384), draw(8, 4, 72, 32)
    normal = torch.randn(64, 64, generator=generator)
    draw(500, 64)
    weight, logits = draw(384, 128).requires_grad_(), draw(512, 1536).requires_grad_()
    F.linear(tall, weight).sin().sum().backward()
    F.cross_entropy(logits, torch.arange(512)).backward()
    tensors = {
        "randn": normal,
        "gemm": tall @ wide,
        "gemm_odd": tall[:768].repeat(1, 3)[:, :351] @ wide.repeat(3, 1)[:351, :48],
        "linear_bf16": F.linear(tall.bfloat16(), wide.t().bfloat16()).float(),
        "gemv": tall @ wide[:, 0],
        "gemm_t": tall.t() @ (tall @ wide),
        "bmm": heads @ heads.transpose(-1, -2),
        "softmax": x.softmax(-1),
        "logsoftmax": x.log_softmax(-1),
        "exp": x.exp(),
        "log": (x + 2).log(),
        "sqrt": (x + 2).sqrt(),
        "erf": torch.erf(x),
        "silu": F.silu(x),
        "gelu": F.gelu(x),
        "tanh": x.tanh(),
        "rowsum": x.sum(1),
        "sdpa": F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "lerp": torch.lerp(x, x * 2, 0.9),
        "lingrad": weight.grad,
        "cegrad": logits.grad,
    }
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def of_numpy() -> dict[str, np.ndarray]:
    """What the gate of a round computes with (`preferences.baselines`)."""
    draws = np.random.Generator(np.random.PCG64(0))
    x, matrix = draws.random(100_003) * 6 - 3, draws.random((2003, 301))
    return {
        "numpy_exp": np.exp(x),
        "numpy_log1p": np.log1p(np.abs(x)),
        "numpy_dot": np.asarray(x @ x),
        "numpy_gemv": matrix.T @ x[:2003],
    }


def digest(values: np.ndarray) -> str:
    """The first ten hex digits of a sha256."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:10]


if __name__ == "__main__":
    main()
