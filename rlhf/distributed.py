"""Several processes that compute one result, each a share of the rows; alone, nothing is done.

Every process has all weights, or its part of them (`rlhf.sharding`), and makes every optimiser
step. What it computes is the forward and backward passes of its rows: every loss here is divided by
what the whole step holds, so gradients and metrics of the shares add up. Responses and scores are
put together, so that whatever follows is computed from all rows, by every process, as if it were
alone.

Sums are in the order of the processes, whatever carries the numbers: each process gets an equal
part of the numbers of all, adds it up, and gives it to the others. So two runs give the same bytes,
and all processes have the same.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional

from rlhf.silent_hosts import end_connections_to_silent_hosts

Rows = TypeVar("Rows", bound=Sequence[Any] | Tensor)

PATIENCE = timedelta(days=7)
"""How long a process waits for another, which may wait for a lock; the death of one is noticed, and
so is a host that falls silent."""

BUCKET = 2**25
"""Gradients added up at a time: 128 MiB in float32."""


_store: Store | None = None
"""What all processes can read and write once they have met."""


class LostProcessError(RuntimeError):
    """Another process of this computation has ended before its time."""


class UnlikeProcessesError(RuntimeError):
    """Some processes of this computation have a GPU, and others have none."""


def join(*, cuda: bool) -> None:
    """Meet the others, where RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.

    Raises:
        LostProcessError: they are not there.
        UnlikeProcessesError: one has a GPU, another has none; by unlike transports they would wait
            for each other for ever.
    """
    global _store
    with _heard():
        store, number, count = next(rendezvous("env://", timeout=PATIENCE))
        store.set_timeout(PATIENCE)
        store.set(f"device {number}", f"{'a' if cuda else 'no'} GPU on {socket.gethostname()}")
        devices = [store.get(f"device {place}").decode() for place in range(count)]
    for place, device in enumerate(devices):
        if device.startswith("a ") != devices[0].startswith("a "):
            raise UnlikeProcessesError(
                f"the stage's processes have unlike devices: the first {devices[0]}, process "
                f"{place} {device}"
            )
    with _heard():
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=PrefixStore("processes", store),
            rank=number,
            world_size=count,
            timeout=PATIENCE,
        )
    _store = store
    end_connections_to_silent_hosts()


def give_reason(reason: str) -> None:
    """Leave word of why this process ends, for the first, which would see only that it has."""
    if dist.is_initialized() and _store is not None:
        with contextlib.suppress(RuntimeError):
            word = f"process {rank()} on {socket.gethostname()}: {reason}"
            _store.set(f"reason {rank()}", word)


def _given_reason() -> str:
    """Why one of the others has ended, if it has said so to the first; else empty."""
    if rank() == 0 and _store is not None:
        with contextlib.suppress(RuntimeError):
            for name in (f"reason {place}" for place in range(1, world())):
                if _store.check([name]):
                    return str(_store.get(name), "utf-8")
    return ""


def leave() -> None:
    """Go on alone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process; 0 is the first, which writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(rows: Rows) -> Rows:
    """The rows of this process; they are dealt out in turn, so each gets short ones and long."""
    return cast(Rows, rows[rank() :: world()])


def total(values: Tensor) -> Tensor:
    """The element-wise sum over all processes, in their order."""
    if world() == 1 or values.numel() == 0:
        return values
    flat = values.flatten().to(_device())
    size = -(-len(flat) // world())
    padded = functional.pad(flat, (0, size * world() - len(flat)))
    found = torch.empty_like(padded)
    mine = part_of_total(padded)
    with _heard():
        dist.all_gather(list(found.view(world(), size)), mine)
    return found[: len(flat)].view(values.shape).to(values.device)


def part_of_total(values: Tensor) -> Tensor:
    """This process's of the equal parts of that sum of flat tensors, each as long as another."""
    parts = torch.empty_like(values)
    with _heard():
        dist.all_to_all_single(parts, values)
    first: Tensor
    first, *others = parts.view(world(), -1)
    for other in others:
        first += other
    return first


def gather_parts(part: Tensor, found: Tensor) -> None:
    """Fill a flat tensor with the equal parts of all processes, of which `part` may be a view."""
    with _heard():
        dist.all_gather_single(found, part)


def meet() -> None:
    """Wait until all processes are here."""
    totals([0.0])


def totals(numbers: Sequence[float]) -> list[float]:
    """The same of plain numbers; a sum of one number and zeros is that number."""
    if world() == 1:
        return list(numbers)
    found: list[float] = total(torch.tensor(numbers, dtype=torch.float64)).tolist()
    return found


def totals_and(
    parts: Sequence[Sequence[Tensor]], count: int, alike: Sequence[Tensor]
) -> tuple[list[float], list[float]]:
    """Sums of `count` numbers that each micro-batch gave, over all processes; and numbers.

    These, `alike`, are the same in every process, and come as they are.

    The device is waited for once: all numbers come from it together, and are added up here, in
    double precision and in the order of the micro-batches. A process may have had none.
    """
    numbers = [*(number for part in parts for number in part), *alike]
    read: list[float] = []
    if numbers:
        read = torch.stack([number.detach().double() for number in numbers]).tolist()
    end = len(parts) * count
    sums = [sum(read[place:end:count], 0.0) for place in range(count)]
    return totals(sums), read[end:]


def any_of(flag: bool) -> bool:
    """Whether it is true in any process."""
    return totals([float(flag)])[0] > 0


def of_first(numbers: Sequence[float]) -> list[float]:
    """What the first process has, where something outside may give each another."""
    return totals([number if rank() == 0 else 0.0 for number in numbers])


def gather(part: Tensor) -> Tensor:
    """The rows of all processes, those of the first before the others'; all else is of one size."""
    if world() == 1:
        return part
    counts = [float(len(part)) if place == rank() else 0.0 for place in range(world())]
    sizes = [int(count) for count in totals(counts)]
    mine = torch.zeros((max(sizes), *part.shape[1:]), dtype=part.dtype, device=_device())
    mine[: len(part)] = part
    found = [torch.empty_like(mine) for _ in sizes]
    with _heard():
        dist.all_gather(found, mine)
    whole = [rows[:size] for rows, size in zip(found, sizes, strict=True)]
    return torch.cat(whole).to(part.device)


def gather_rows(part: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same of rows of different lengths, such as token ids."""
    if world() == 1:
        return [list(row) for row in part]
    lengths = gather(torch.tensor([len(row) for row in part], dtype=torch.int64))
    ids = torch.zeros(len(part), int(lengths.amax()) if len(lengths) else 0, dtype=torch.int64)
    for place, row in enumerate(part):
        ids[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
    rows = zip(gather(ids).tolist(), lengths.tolist(), strict=True)
    return [row[:length] for row, length in rows]


def sum_gradients(weights: Sequence[nn.Parameter]) -> None:
    """Replace every gradient by its sum over all processes; one that no process has stays None."""
    if world() == 1:
        return
    held = totals([float(weight.grad is not None) for weight in weights])
    chosen = [weight for weight, count in zip(weights, held, strict=True) if count]
    for weight in chosen:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    for bucket in _buckets(chosen):
        gradients = [weight.grad for weight in bucket if weight.grad is not None]
        sums = total(torch.cat([gradient.flatten() for gradient in gradients]))
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, found in zip(gradients, sums.split(sizes), strict=True):
            gradient.copy_(found.view_as(gradient))


def _buckets(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Consecutive weights of at most BUCKET numbers together, or one that is larger."""
    bucket: list[nn.Parameter] = []
    for weight in weights:
        if bucket and sum(each.numel() for each in bucket) + weight.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def _device() -> torch.device:
    """Where the transport wants its tensors."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """Inside, the transport's errors become ours: those of gloo come from an end that is gone."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError as error:
        if (nccl := _said_by_nccl(str(error))) is not None:
            raise LostProcessError(
                f"NCCL failed ({_given_reason() or nccl}): the processes' GPUs or the network "
                "between them do not work together, or another process has ended. Run it again to "
                "resume from the newest checkpoint"
            ) from error
        # Without the line of the transport's source before it, and the advice behind it.
        reason = str(error).partition("\n")[0].rpartition("] ")[2].partition(". ")[0]
        raise LostProcessError(
            f"another of the stage's processes has ended ({_given_reason() or reason}). "
            "Run it again to resume from the newest checkpoint"
        ) from error


def _said_by_nccl(error: str) -> str | None:
    """The kind of an error of NCCL and its last word on it; None of another transport's."""
    if not error.startswith("NCCL error"):
        return None
    told, _, last = error.partition("\nLast error:\n")
    kind, _, usual = told.partition("\n")[2].partition("\n")[0].partition(": ")
    reason = last.partition("\n")[0] or usual
    return f"{kind}: {reason}" if kind else told.partition("\n")[0]
