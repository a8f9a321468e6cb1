"""The small training step that every loop shares: schedule, clipping, finite check, optimisers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlhf.distributed import sum_gradients, totals, totals_and
from rlhf.divided import held_as, is_divided, part
from rlhf.muon import Muon
from rlhf.params.optimiser import OptimiserParams
from rlhf.sharding import Held
from rlhf.stopping import NonFiniteError

STEP = "step"
"""What torch's optimisers call their count of steps among the moments of a weight."""


def schedule_factor(params: OptimiserParams, step: int, total: int) -> float:
    """Fraction of the peak learning rate at a step, counted from 0."""
    if step < params.warmup_steps:
        return (step + 1) / params.warmup_steps
    if params.schedule == "constant":
        return 1.0
    progress = (step - params.warmup_steps) / max(1, total - params.warmup_steps)
    left = 1 - progress if params.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return params.final_fraction + (1 - params.final_fraction) * left


def require_finite_loss(loss: float, step: int) -> None:
    """Raise NonFiniteError where the loss of a step (counted from 0) is not finite."""
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"step {step + 1}: the loss is {loss}; no weight was changed. Try a lower learning "
            "rate; if it happens at once, check the data and the weights it started from"
        )


class StepRead(NamedTuple):
    """What is known of a step once its gradient is there."""

    totals: list[float]
    """Sums of what the micro-batches gave, over all processes."""
    norms: list[float]
    """Of each optimiser's gradient, before it was scaled down."""


def read_step(
    parts: Sequence[Sequence[Tensor]], count: int, optimisers: Sequence["Optimiser"]
) -> StepRead:
    """Scale the gradients down to their largest norms, and read what the step has given.

    Where a process has whole weights and is the only one, the device is waited for this once in a
    step (for models that `takes_any_mask`). So it is here, one step later, that broken weights are
    noticed; after the last step and before they are saved `require_finite_weights` looks.

    Args:
        parts: `count` numbers of each micro-batch.
        count: of those numbers.
        optimisers: that step together.

    Raises:
        NonFiniteError: the step before made a weight NaN or infinite.
    """
    norms = [optimiser.scale_gradients() for optimiser in optimisers]
    sizes = [optimiser.size_of_weights() for optimiser in optimisers]
    sums, read = totals_and(parts, count, [*norms, *sizes])
    for size in read[len(norms) :]:
        _require_finite_size(size)
    return StepRead(sums, read[: len(norms)])


def require_finite_norms(norms: Iterable[float]) -> None:
    """Raise NonFiniteError where the norm of a gradient is not finite."""
    for norm in norms:
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"the global gradient norm is {norm}; no weight was changed. Try a lower learning "
                "rate, or float32 where precision is lower"
            )


class Optimiser:
    """AdamW, or Muon with AdamW, behind one `apply` at a fraction of the peak rates.

    Whoever steps reads the norms of all gradients first (`read_step`): so one that is not finite
    leaves the weights of every optimiser untouched.
    """

    def __init__(self, params: OptimiserParams, weights: Iterable[tuple[str, nn.Parameter]]):
        """Take named weights; embeddings, heads, adapters and vectors never go to Muon."""
        self.params = params
        named = [(name, weight) for name, weight in weights if weight.requires_grad]
        self.weights = [weight for _, weight in named]
        self._divided = any(is_divided(weight) for weight in self.weights)
        matrices = [w for name, w in named if params.name == "muon" and _is_hidden(name, w)]
        chosen = {id(weight) for weight in matrices}
        rest = [(name, weight) for name, weight in named if id(weight) not in chosen]
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            muon = Muon(matrices, lr=params.muon_lr, weight_decay=params.weight_decay)
            self._optimisers.append((muon, params.muon_lr))
        groups = [
            {"params": [w for _, w in rest if w.ndim >= 2], "weight_decay": params.weight_decay},
            {"params": [w for _, w in rest if w.ndim < 2], "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=params.lr,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            fused=True,
        )
        self._optimisers.append((adamw, params.lr))

    def scale_gradients(self) -> Tensor:
        """Scale the gradients down to the largest global norm; the norm before, a scalar.

        Of several processes, each has computed the gradients of its rows; they are added up first,
        unless the weights are divided, whose gradients are sums already.
        """
        if self._divided:
            return self._scalar(_clip_parts(self.weights, self.params.max_grad_norm))
        sum_gradients(self.weights)
        return nn.utils.clip_grad_norm_(self.weights, self.params.max_grad_norm)

    def size_of_weights(self) -> Tensor:
        """The global norm of the weights, a scalar."""
        weights = [weight.detach() for weight in self.weights]
        if self._divided:
            return self._scalar(_norm_of_parts(weights))
        return nn.utils.get_total_norm(weights)

    def _scalar(self, number: float) -> Tensor:
        return torch.tensor(number, dtype=torch.float64, device=self.weights[0].device)

    def apply(self, factor: float) -> None:
        """Step at `factor` of the peak rate and zero."""
        for optimiser, peak in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def require_finite_weights(self) -> None:
        """Raise NonFiniteError where a weight in training is NaN or infinite."""
        _require_finite_size(float(self.size_of_weights()))

    def discard(self) -> None:
        """Forget the gradients without a step."""
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments of all optimisers."""
        return {str(i): opt.state_dict() for i, (opt, _) in enumerate(self._optimisers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for index, (optimiser, _) in enumerate(self._optimisers):
            saved = state[str(index)]
            weights = [weight for group in optimiser.param_groups for weight in group["params"]]
            moments = {
                number: {
                    name: held_as(value, weights[number]) if name != STEP else value
                    for name, value in moments.items()
                }
                for number, moments in saved["state"].items()
            }
            optimiser.load_state_dict({**saved, "state": moments})


def _require_finite_size(size: float) -> None:
    if not math.isfinite(size):
        raise NonFiniteError(
            f"the global norm of the weights is {size}: this model is unusable. Resume from the "
            "last checkpoint with a lower learning rate; if it happens at the first step, check "
            "the weights it started from"
        )


def _clip_parts(weights: Sequence[nn.Parameter], limit: float) -> float:
    """Scale divided gradients down to a global norm of at most `limit`; the norm before."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norm = _norm_of_parts(gradients)
    # As torch's clip_grad_norm_, which does not take parts of several processes on a CPU.
    scale = min(1.0, limit / (norm + 1e-6))
    for gradient in gradients:
        part(gradient).mul_(scale)
    return norm


def _norm_of_parts(tensors: Sequence[Tensor]) -> float:
    """The global norm of divided tensors, the same in every process."""
    squares = [part(tensor).square().sum(dtype=torch.float64) for tensor in tensors]
    return math.sqrt(totals([float(sum(squares))])[0])


def _is_hidden(name: str, weight: nn.Parameter) -> bool:
    outside = ("embed", "lm_head", "wte", "wpe", "score", "value_head", "lora_")
    return weight.ndim == 2 and not any(part in name for part in outside)


def changing_weights(model: nn.Module) -> dict[str, Any]:
    """What a checkpoint holds of a model: not what lies frozen below an adapter, on disk anyway."""
    frozen = _frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give a model the weights of a checkpoint, divided as the model's are; frozen ones stay."""
    own, frozen = model.state_dict(), _frozen(model)
    given = {name: held_as(value, own.get(name, value)) for name, value in state.items()}
    model.load_state_dict({name: own[name] for name in frozen} | given)


def _frozen(model: nn.Module) -> set[str]:
    """Names of weights that no step changes; those of a tied weight, all."""
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, weight in named if not weight.requires_grad}


class Training:
    """A model in training with its optimiser and step count: what a checkpoint holds.

    Every loop derives its data order from named seeds, so that these three are its whole state.
    """

    def __init__(self, model: nn.Module, optimiser: Optimiser, held: Held | None = None):
        """Start at step 0; `held` divides the model, whole in every process without it."""
        self.model = model
        self.optimiser = optimiser
        self.held = Held(model) if held is None else held
        self.step = 0

    def advance(
        self, parts: Sequence[Sequence[Tensor]], count: int, params: OptimiserParams, total: int
    ) -> StepRead:
        """Take the optimiser step of `total` whose gradient is there; what it gave.

        Args:
            parts: of each micro-batch its share of the loss and then of any other numbers.
            count: of those numbers.
            params: of the optimiser.
            total: steps of the whole training.

        Raises:
            NonFiniteError: the loss, the gradient, or a weight after the step before is not finite.
        """
        found = read_step(parts, count, [self.optimiser])
        require_finite_loss(found.totals[0], self.step)
        require_finite_norms(found.norms)
        self.optimiser.apply(schedule_factor(params, self.step, total))
        self.step += 1
        return found

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser moments and step."""
        return {
            "model": changing_weights(self.model),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        load_weights(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]

    def require_finite_weights(self) -> None:
        """Raise NonFiniteError where a weight in training is NaN or infinite."""
        self.optimiser.require_finite_weights()
