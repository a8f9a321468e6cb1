"""A step of decoding waits for the device once, whatever becomes of its rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.generation import sample_responses
from rlhf.params.sampling import SamplingParams
from tests import tiny

READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
}
"""What returns only once the device has come so far: a number, or a shape that depends on one."""


class Reads(TorchDispatchMode):
    """How often the host asks for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func is torch.ops.aten.index.Tensor or func is torch.ops.aten.index_put_.default
        masks = by_mask and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += func in READS or masks
        return func(*args, **(kwargs or {}))


@pytest.fixture
def reads_of(monkeypatch: pytest.MonkeyPatch):
    """(lists read, other reads) of a rollout, without those of transformers' own pass."""
    lists: list[int] = []
    plain = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: (lists.append(1), plain(self))[1])
    monkeypatch.setattr(
        "rlhf.generation.next_logits", lambda lm, ids, seen, cache: torch.zeros(len(ids), 64)
    )
    monkeypatch.setattr(
        "rlhf.generation.decoding_cache", lambda lm, length: SimpleNamespace(
            batch_select_indices=lambda rows: None
        )
    )  # fmt: skip

    def count(draws: Tensor) -> tuple[int, int]:
        lists.clear()
        prompts = torch.ones(len(draws), 3, dtype=torch.int64)
        with Reads() as reads:
            sample_responses(
                tiny.llama(0),
                prompts,
                prompts.bool(),
                SamplingParams(max_new_tokens=draws.shape[1]),
                stop_ids=[0],
                pad_id=1,
                draws=draws,
            )
        return len(lists), reads.count

    return count


def never_ending(steps: int) -> Tensor:
    return torch.full((4, steps), 0.5, dtype=torch.float64)


def test_a_step_reads_one_list(reads_of) -> None:
    more, fewer = reads_of(never_ending(24)), reads_of(never_ending(8))

    assert more[0] - fewer[0] == 16
    assert more[1] == fewer[1]


def test_neither_do_steps_in_which_rows_end_or_leave(reads_of) -> None:
    """A draw of 0 gives the end token; with 3 of 4 rows and with 1 the rest goes on alone."""
    draws = never_ending(24)
    draws[0, 2] = draws[1, 5] = draws[2, 5] = 0.0

    assert reads_of(draws) == reads_of(never_ending(24))
