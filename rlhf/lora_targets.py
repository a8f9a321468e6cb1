"""Which layers of a model can have a low-rank adapter of their own."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from rlhf.model_folders import ModelFolderError


def check_targets(
    model: nn.Module,
    targets: Sequence[str],
    *,
    head: nn.Module | None = None,
    setting: str = "lora.targets",
) -> None:
    """Refuse names that are of no layer, and layers whose adapter could not be merged.

    An adapter changes one use of a weight. Merged into a weight that two layers have in common, as
    a tied head and the embedding have, it would change both: another model than was trained.

    Raises:
        ModelFolderError: the message names the target.
    """
    users: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(weight), []).append(name)
    for target in targets:
        named = [
            (name, layer)
            for name, layer in model.named_modules()
            if name == target or name.endswith(f".{target}")
        ]
        if not named:
            known = ", ".join(sorted(set(_possible(model, users))))
            raise ModelFolderError(
                f"{setting}: no layer is named {target}; expected some of {known}"
            )
        for name, layer in named:
            if layer is head:
                raise ModelFolderError(
                    f"{setting}: {name} is the new head, which is trained whole; leave it out"
                )
            if why := _unfit(layer, users):
                raise ModelFolderError(f"{setting}: {name} {why}")


def _unfit(layer: nn.Module, users: Mapping[int, Sequence[str]]) -> str:
    """Why a layer cannot have an adapter, behind its name; empty where it can."""
    if isinstance(layer, nn.Embedding):
        return "is an embedding; adapters go on linear layers"
    if _is_router(layer):
        return (
            "chooses experts, and its result is no matrix product alone, to which an adapter "
            "could add; leave it out"
        )
    others = users.get(id(getattr(layer, "weight", None)), [])
    if len(others) > 1:
        return (
            f"shares its weight ({', '.join(others)}), and an adapter of one use cannot be merged "
            "into it; leave it out"
        )
    return ""


def routers(model: nn.Module) -> list[str]:
    """Names of the linear layers that choose experts: `peft` would take them for ordinary ones."""
    return [name for name, layer in model.named_modules() if _is_router(layer)]


def _is_router(layer: nn.Module) -> bool:
    # Phi-3.5-MoE's and Llama 4's; the others' are no linear layers.
    return isinstance(layer, nn.Linear) and "Router" in type(layer).__name__


def _possible(model: nn.Module, users: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """The last part of the name of each layer with a matrix of its own, embeddings aside."""
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim == 2
        if matrix and id(weight) in users and not _unfit(layer, users):
            yield name.rpartition(".")[2]
