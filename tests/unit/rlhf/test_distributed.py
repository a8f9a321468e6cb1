"""Sums, rows, wishes and deaths of processes that compute together."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
from torch.distributed import DistBackendError

from rlhf import distributed
from tests.forked import run_together


def test_alone_nothing_is_changed() -> None:
    values, rows = torch.arange(3.0), [[1], [2, 3]]

    assert (distributed.rank(), distributed.world()) == (0, 1)
    assert distributed.total(values) is values
    assert distributed.gather(values) is values
    assert distributed.share(rows) == distributed.gather_rows(rows) == rows
    assert distributed.totals([0.1]) == distributed.of_first([0.1]) == [0.1]


def test_a_sum_is_in_the_order_of_the_processes_and_the_same_in_all() -> None:
    """In float32 1e8 + 1 - 1e8 is 0 and 1e8 - 1e8 + 1 is 1."""
    numbers = ([1e8, -1e8, 1e8], [1.0, 1e8, -1e8], [-1e8, 1.0, 1.0])

    def work() -> list[float]:
        return distributed.total(torch.tensor(numbers[distributed.rank()])).tolist()

    assert run_together(work, processes=3) == [[0.0, 1.0, 1.0]] * 3


def test_rows_of_all_processes_come_together_whatever_their_number_and_length() -> None:
    rows = [[1], [], [2, 3, 4], [5, 6], [7]]

    def work():
        part = distributed.share(rows)
        flags = torch.tensor([len(row) > 1 for row in part])
        return distributed.gather_rows(part), distributed.gather(flags).tolist()

    expected = [[1], [2, 3, 4], [7], [], [5, 6]], [False, True, False, False, True]
    assert run_together(work) == [expected, expected]


def test_a_process_without_rows_takes_part() -> None:
    def work():
        return distributed.gather_rows(distributed.share([[1, 2]]))

    assert run_together(work) == [[[1, 2]]] * 2


def test_the_wish_of_one_is_everybodys_and_what_the_first_has_is_what_all_have() -> None:
    def work():
        rank = distributed.rank()
        wishes = distributed.any_of(rank == 1), distributed.any_of(False)
        return wishes, distributed.of_first([0.1 + rank, 7.0])

    assert run_together(work) == [((True, False), [0.1, 7.0])] * 2


def test_gradients_are_added_up_and_one_that_nobody_has_stays_none() -> None:
    def work():
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        rank = distributed.rank()
        weights[0].grad = torch.tensor([1.0, 10.0]) * (rank + 1)
        if rank == 1:
            weights[1].grad = torch.tensor([5.0, 6.0])
        distributed.sum_gradients(weights)
        return [None if weight.grad is None else weight.grad.tolist() for weight in weights]

    assert run_together(work) == [[[3.0, 30.0], [5.0, 6.0], None]] * 2


def test_buckets_change_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "BUCKET", 3)

    def work():
        weights = [torch.nn.Parameter(torch.zeros(size)) for size in (2, 1, 5, 2)]
        for number, weight in enumerate(weights):
            weight.grad = torch.full_like(weight, number + 10.0 * distributed.rank())
        distributed.sum_gradients(weights)
        return [weight.grad.tolist() for weight in weights]

    assert run_together(work) == [[[10.0] * 2, [12.0], [14.0] * 5, [16.0] * 2]] * 2


def test_the_death_of_another_is_an_error_that_says_so() -> None:
    def work():
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return distributed.any_of(False)

    found, nothing = run_together(work)
    assert nothing is None
    assert isinstance(found, distributed.LostProcessError)
    assert "another of the stage's processes has ended" in str(found)


def test_processes_of_which_one_has_no_gpu_end_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By unlike transports they would wait for each other for as long as for a lock."""
    monkeypatch.setattr(distributed, "PATIENCE", timedelta(seconds=60))
    join = distributed.join

    def unlike(*, cuda: bool) -> None:
        began = time.monotonic()
        try:
            join(cuda=os.environ["RANK"] == "0")
        except RuntimeError as error:
            found.append(str(error))
        found.append(time.monotonic() - began)

    found: list[object] = []
    monkeypatch.setattr(distributed, "join", unlike)

    (said, seconds), (others, others_seconds) = run_together(lambda: found)
    # The first speaks for the stage, and the store ends with it: the other may find it gone.
    assert "the first a GPU on" in said
    assert "process 1 no GPU on" in said
    assert "unlike devices" in others or "has ended" in others
    assert max(seconds, others_seconds) < 30


NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {short} (run with "
    "NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n{name}: {long}\nLast error:\n{last}"
)
"""What torch raises, by reports of 2024 and 2025."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NCCL.format(
                short="invalid usage",
                name="ncclInvalidUsage",
                long="This usually reflects invalid usage of NCCL library.",
                last="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 81000",
            ),
            "NCCL failed (ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on "
            "CUDA device 81000)",
        ),
        (
            NCCL.format(short="internal error", name="ncclInternalError", long="A bug.", last=""),
            "NCCL failed (ncclInternalError: A bug.)",
        ),
    ],
)
def test_an_error_of_nccl_is_told_and_taken_for_no_death(error: str, said: str) -> None:
    """NCCL fails for many reasons, and names the one behind `Last error`."""
    with pytest.raises(distributed.LostProcessError) as found, distributed._heard():
        raise DistBackendError(error)

    assert str(found.value).startswith(said)
    assert "has ended (" not in str(found.value)


def test_an_error_of_a_gpu_is_no_death_of_another() -> None:
    """It may come from whatever the GPU was asked for before, and surface here."""
    error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    with pytest.raises(torch.AcceleratorError), distributed._heard():
        raise error
