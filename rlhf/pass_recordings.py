"""One recorded pass of a trunk: a CUDA graph of what it asks of a GPU, two in training.

The second is the backward pass. It adds to the gradients of the weights where they lie, as any
backward pass does; between the two, recordings of other passes in training must not be repeated,
since their activations lie in the same memory.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from rlhf import cuda_graphs, head_products
from rlhf.cuda_graphs import Repeat
from rlhf.shapes import SequenceVisible, TokenIds


class Inputs(NamedTuple):
    """What a trunk reads."""

    embeddings: Tensor
    """(rows, tokens, hidden)"""
    positions: TokenIds
    visible: SequenceVisible | None
    """None: every token sees all before it."""

    def clone(self) -> "Inputs":
        """The same in memory that nobody else writes."""
        visible = None if self.visible is None else self.visible.clone()
        return Inputs(self.embeddings.detach().clone(), self.positions.clone(), visible)

    def copy_(self, other: "Inputs") -> None:
        """Take the other's numbers."""
        self.embeddings.detach().copy_(other.embeddings)
        self.positions.copy_(other.positions)
        if self.visible is not None and other.visible is not None:
            self.visible.copy_(other.visible)


class Recorder(NamedTuple):
    """How passes are recorded: a pretended one has the parts of `rlhf.cuda_graphs`, too."""

    warm: Callable[[Callable[[], None]], None]
    capture: Callable[[Callable[[], None], Any], Repeat]
    pool: Callable[[], object]
    """Memory that recordings have in common."""
    give_back: Callable[[], None]
    """What is kept of memory that nobody uses goes back to the device."""


GPU = Recorder(
    cuda_graphs.warm, cuda_graphs.capture, cuda_graphs.Pool, lambda: torch.cuda.empty_cache()
)


class Pass:
    """A recorded pass without gradients."""

    def __init__(self, recorder: Recorder, trunk: nn.Module, inputs: Inputs):
        """Record one with inputs of this shape."""
        self._inputs = inputs.clone()
        self._hidden = inputs.embeddings

        def forward() -> None:
            self._hidden = run(trunk, self._inputs)

        recorder.warm(forward)
        self._forward = recorder.capture(forward, _pool(recorder, training=False))

    def __call__(self, inputs: Inputs) -> Tensor:
        """The hidden states."""
        self._inputs.copy_(inputs)
        self._forward()
        return self._hidden.clone()


class TrainingPass:
    """A recorded pass with gradients, the weights' and that of the embeddings."""

    def __init__(
        self, recorder: Recorder, trunk: nn.Module, inputs: Inputs, gradients: "Gradients"
    ):
        """Record one with inputs of this shape, while no other is unfinished."""
        self._inputs, self._gradients = inputs.clone(), gradients
        embeddings = self._inputs.embeddings.requires_grad_()
        self._hidden = inputs.embeddings
        self._gradient = torch.zeros_like(inputs.embeddings)
        """Of the hidden states, which have the shape of the embeddings."""

        def forward() -> None:
            self._hidden = run(trunk, self._inputs)

        def backward() -> None:
            with torch.autocast(embeddings.device.type, enabled=False):
                torch.autograd.backward(self._hidden, self._gradient)

        def both() -> None:
            forward()
            backward()  # Of zeros: it changes no gradient.

        pool = _pool(recorder, training=True)
        with torch.enable_grad(), _weights_replaced(trunk, gradients.leaves()):
            recorder.warm(both)
            embeddings.grad = None
            self._forward = recorder.capture(forward, pool)
            self._backward = recorder.capture(backward, pool)
        assert embeddings.grad is not None
        self._to_embeddings: Tensor = embeddings.grad
        self._hidden = self._hidden.detach()

    def __call__(self, inputs: Inputs) -> Tensor:
        """The hidden states, which can be differentiated once."""
        return cast(Tensor, cast(Any, _Replayed).apply(self, *inputs))

    def forward(self, inputs: Inputs) -> Tensor:
        """The hidden states alone."""
        self._inputs.copy_(inputs)
        self._forward()
        return self._hidden.clone()

    def backward(self, gradient: Tensor) -> Tensor:
        """Add to the weights' gradients; that of the embeddings, from that of the hidden states."""
        self._gradient.copy_(gradient)
        self._gradients.attach()
        self._backward()
        return self._to_embeddings.clone()


class Unfinished:
    """A recorded forward pass in training whose backward pass may still come.

    Its activations lie in memory that all recordings in training have in common.
    """

    current: "weakref.ref[Unfinished] | None" = None

    @classmethod
    def exists(cls) -> bool:
        """Whether there is one, whosever."""
        return cls.current is not None and cls.current() is not None

    def begin(self) -> None:
        """Be the one, as long as somebody holds it."""
        Unfinished.current = weakref.ref(self)

    def end(self) -> None:
        """The backward pass has come."""
        assert Unfinished.current is not None
        assert Unfinished.current() is self, "another recorded pass has overwritten this one's"
        Unfinished.current = None


class _Replayed(torch.autograd.Function):
    """A recorded pass among what torch differentiates."""

    @staticmethod
    def forward(ctx: Any, found: TrainingPass, *inputs: Tensor | None) -> Tensor:
        ctx.found, ctx.unfinished = found, Unfinished()
        ctx.unfinished.begin()
        return found.forward(Inputs(*cast(Any, inputs)))

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> Any:
        unfinished, found = cast(Any, ctx).unfinished, cast(Any, ctx).found
        unfinished.end()
        return None, found.backward(gradients[0]), None, None


class Gradients:
    """The gradients of a trunk's weights, in memory that every recording adds to."""

    def __init__(self, trunk: nn.Module):
        """Of those that are trained, without the embeddings; gradients that are there stay."""
        outside = set(cast(Any, trunk).get_input_embeddings().parameters())
        weights = [w for w in trunk.parameters() if w.requires_grad and w not in outside]
        self._pairs = [(w, torch.zeros_like(w) if w.grad is None else w.grad) for w in weights]

    def leaves(self) -> dict[nn.Parameter, Tensor]:
        """In place of each weight one that shares its memory, and has its gradient here.

        What torch remembers of a weight, such as the stream on which it adds gradients up, is not
        of the recording.
        """
        found = {weight: weight.detach().requires_grad_() for weight, _ in self._pairs}
        for weight, gradient in self._pairs:
            found[weight].grad = gradient
        return found

    def attach(self) -> None:
        """Let the weights have their gradients here, with what they have so far."""
        if fresh := [gradient for weight, gradient in self._pairs if weight.grad is None]:
            torch._foreach_zero_(fresh)
        for weight, gradient in self._pairs:
            if weight.grad is not gradient:
                if weight.grad is not None:
                    gradient.copy_(weight.grad)
                weight.grad = gradient


_pools: dict[tuple[Recorder, bool], object] = {}


def _pool(recorder: Recorder, *, training: bool) -> object:
    """Passes in training have memory of their own: others may come between their two halves."""
    key = recorder, training
    if key not in _pools:
        _pools[key] = recorder.pool()
    return _pools[key]


def give_back_pools(recorder: Recorder) -> None:
    """Hold no memory for recordings any more, but for those that somebody still has."""
    _pools.clear()
    recorder.give_back()


def run(trunk: nn.Module, inputs: Inputs) -> Tensor:
    """The hidden states of a pass that is not recorded."""
    output = trunk(
        inputs_embeds=inputs.embeddings,
        attention_mask=inputs.visible,
        position_ids=inputs.positions,
        use_cache=False,
    )
    return cast(Tensor, output.last_hidden_state)


@contextlib.contextmanager
def _weights_replaced(trunk: nn.Module, leaves: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Inside it the trunk's modules read these tensors in place of their weights."""
    replaced = [
        (module._parameters, name, weight)
        for module in trunk.modules()
        for name, weight in module._parameters.items()
        if weight is not None and weight in leaves
    ]
    for weights, name, weight in replaced:
        weights[name] = cast(Any, leaves[weight])
    try:
        yield
    finally:
        for weights, name, weight in replaced:
            weights[name] = weight


@contextlib.contextmanager
def no_kept_casts() -> Iterator[None]:
    """Inside it autocast casts a weight wherever it is read; a cast that it kept would move."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with head_products.no_kept_casts():
            yield
    finally:
        torch.set_autocast_cache_enabled(before)
