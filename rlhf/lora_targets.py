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
            if isinstance(layer, nn.Embedding):
                raise ModelFolderError(
                    f"{setting}: {name} is an embedding; adapters go on linear layers"
                )
            others = users.get(id(getattr(layer, "weight", None)), [])
            if len(others) > 1:
                raise ModelFolderError(
                    f"{setting}: {name} shares its weight ({', '.join(others)}), and an adapter "
                    "of one use cannot be merged into it; leave it out"
                )


def _possible(model: nn.Module, users: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """The last part of the name of each layer with a matrix of its own, embeddings aside."""
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim == 2
        if matrix and len(users.get(id(weight), ())) == 1 and not isinstance(layer, nn.Embedding):
            yield name.rpartition(".")[2]
