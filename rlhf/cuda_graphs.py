"""CUDA graphs: what was asked of a GPU once, kernel by kernel, and is then asked for as a whole.

To ask for a kernel takes Python and the driver longer than most kernels of a model of 135 million
parameters take the GPU. A recording has addresses and shapes in it: what changes from one
repetition to the next lies in tensors that stay where they are.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch

SWITCH = "RLHF_CUDA_GRAPHS"
"""An environment variable: 0 asks for each kernel by itself, should a GPU not record."""

Repeat = Callable[[], object]
"""Does once more what was recorded."""
Record = Callable[[Callable[[], None]], Repeat]
"""Runs something once, records it where there is room, and gives what repeats it."""


def switched_off() -> bool:
    """Whether whoever started this process wants no recordings."""
    return os.environ.get(SWITCH) == "0"


def record(step: Callable[[], None]) -> Repeat:
    """Run the step, then record it; where there is no room for that, the step repeats itself."""
    warm(step)
    with contextlib.suppress(torch.OutOfMemoryError):
        return capture(step)
    # What torch keeps free cannot be given back during a recording.
    torch.cuda.empty_cache()
    with contextlib.suppress(torch.OutOfMemoryError):
        return capture(step)
    warnings.warn(
        "the GPU has no room to record a decoding step; sampling takes longer, with the same "
        "result. Fewer responses at a time may help",
        stacklevel=2,
    )
    return step


def warm(step: Callable[[], None]) -> None:
    """Run a step where it will be recorded: what libraries set up at first cannot be recorded."""
    stream, before = _stream(), torch.cuda.current_stream()
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream):
            step()
    finally:
        before.wait_stream(stream)


class Pool:
    """Memory that recordings have in common.

    Those of one pool must not be repeated one between the parts of another.
    """

    def __init__(self) -> None:
        """Begin with a recording that is never repeated.

        torch gives a pool up with the last of its recordings, and fails when it is used again.
        """
        self.handle: Any = torch.cuda.graph_pool_handle()
        number = torch.zeros(1, device="cuda")
        self._first = capture(lambda: cast(None, number.zero_()), self)


def capture(step: Callable[[], None], pool: Pool | None = None) -> Repeat:
    """Record the step, which computes nothing; in memory of its own, or in that of the pool.

    Not by `torch.cuda.graph`, which after an error stays on the stream. What goes to a pool is
    large: what torch keeps free is given back before, since it cannot be during a recording.

    Raises:
        torch.OutOfMemoryError: there is no room for what the step computes, or for the graph.
        RuntimeError: the step has something that cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    handle = None
    if pool is not None:
        handle = pool.handle
        torch.cuda.empty_cache()
    try:
        with torch.cuda.stream(_stream()):
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # CUDA itself allocates what a captured graph needs, and has an error of its own.
        if "out of memory" in str(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise RuntimeError(
            f"this GPU cannot record what a model computes; {SWITCH}=0 computes without: {error}"
        ) from error
    return cast(Repeat, graph.replay)


@functools.cache
def _stream() -> torch.cuda.Stream:
    """One for all recordings: each stream has working memory of its own for products."""
    return torch.cuda.Stream()
