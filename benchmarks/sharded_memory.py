"""What a process holds of a model in training that 1, 2 or 4 of them divide, beside the plan.

    python -m benchmarks.sharded_memory

SFT of SmolLM2's shape (135 million weights, drawn at random) by AdamW in float32 on this CPU, two
steps of four short rows for each process. Prints the lines of docs/how-to/several-gpus.md; takes
minutes and 6 GB.
"""

import argparse
import gc
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.memory_plan import SMALL
from rlhf import distributed, sft
from rlhf.compute import Compute, give_back_freed_memory, keep_all_freed_memory
from rlhf.divided import part
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sharding import Held

WORLDS = (1, 2, 4)
MB = 1e6
TOKENS = 24
"""Of a row."""


def planned(processes: int) -> tuple[float, float]:
    """MB that a process keeps between steps, and the most during one, activations aside.

    4 bytes of a weight for itself, 8 for its moments, 4 for its gradient. The embeddings are the
    head as well, so they have two gradients until these are added up, and divided or not, a process
    has both whole, and the embeddings themselves.
    """
    layer = 2 * SMALL.hidden**2 * (1 + SMALL.kv_heads / SMALL.heads)
    layer += 3 * SMALL.hidden * SMALL.mlp + 2 * SMALL.hidden
    outside = SMALL.vocabulary * SMALL.hidden + SMALL.hidden
    weights = SMALL.layers * layer + outside
    most = 16 * weights / processes + (12 if processes > 1 else 4) * outside
    return 12 * weights / processes / MB, most / MB


def measured(processes: int) -> list[tuple[float, float, float]]:
    """Of each process: MB of its tensors between steps, its most in training and at any time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ends = []
    for rank in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_train, args=(rank, processes, port, theirs))
        process.start()
        ends.append((process, ours))
    found = [ours.recv() for _, ours in ends]
    for process, _ in ends:
        process.join()
    return found


def _train(rank: int, processes: int, port: int, theirs: Connection) -> None:
    torch.set_num_threads(1)
    # Memory as in a stage.
    if processes == 1:
        keep_all_freed_memory()
    else:
        give_back_freed_memory()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(
            address, RANK=str(rank), WORLD_SIZE=str(processes), GLOO_SOCKET_IFNAME="lo"
        )
        distributed.join(cuda=False)
    before = _pages("VmRSS")
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL.config()).eval()
    held = Held(model, divided=processes > 1)
    at_start = _pages("VmHWM")
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Forgets the most so far.
    rate = OptimiserParams(lr=1e-5, warmup_steps=0)
    optimiser = Optimiser(rate, model.named_parameters())
    training = Training(model, optimiser, held)
    rows = [sft.Example([2] * (TOKENS // 2), [3] * (TOKENS // 2)) for _ in range(8 * processes)]
    params = SFTParams(epochs=1, batch_size=4 * processes, micro_batch_size=4, optimiser=rate)
    compute = Compute(torch.device("cpu"), "float32")
    list(sft.train(training, rows, params, pad_id=0, compute=compute, seeds=Seeds(0)))
    kept = _bytes(training.state_dict()) / MB
    most = _pages("VmHWM")
    theirs.send((kept, most - before, max(most, at_start) - before))
    distributed.leave()


def _pages(name: str) -> float:
    """MB of this process, by the kernel's name for it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / MB


def _bytes(state: object) -> int:
    """Of all tensors, those that share memory once; of divided ones this process's rows."""
    storages = {tensor.untyped_storage() for tensor in map(part, _tensors(state))}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(state: object) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    for inner in state.values() if isinstance(state, dict) else ():
        yield from _tensors(inner)


def main() -> int:
    """Entry point; the exit code."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    sys.stdout.write(
        "| processes | kept: plan | kept | most in a step: plan | most in a step | most ever |\n"
        "|---:|---:|---:|---:|---:|---:|\n"
    )
    for processes in WORLDS:
        keep, most = planned(processes)
        columns = [max(each) for each in zip(*measured(processes), strict=True)]
        numbers = (keep, columns[0], most, *columns[1:])
        cells = " | ".join(f"{number:,.0f}" for number in numbers)
        sys.stdout.write(f"| {processes} | {cells} |\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
