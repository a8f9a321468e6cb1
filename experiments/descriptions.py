"""Descriptions of experiments: `experiments/params/NAME.yaml`, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen
from pydantic import TypeAdapter, ValidationError

from tasks.params.loading import read_yaml
from tasks.params.overlays import lay_over

FOLDER = Path("experiments") / "params"


class DescriptionError(ValueError):
    """An experiment that does not exist, or whose description is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A question, and the runs that are to answer it."""

    name: str
    question: str
    budget: str
    """What it costs, in words."""
    seeds: Annotated[list[Annotated[int, Ge(0)]], MinLen(1)]
    variants: Annotated[dict[str, dict[str, Any]], MinLen(1)]
    """Name -> what is laid over params.yaml. Differences are to the first variant."""
    common: dict[str, Any]
    """Laid over params.yaml in all variants."""
    fit: Literal["none", "gold_over_kl"]
    """Whether the page fits the two forms of Gao et al. (2023) to the final policies."""

    def overlay(self, variant: str, seed: int) -> Mapping[str, object]:
        """What is laid over params.yaml in one run."""
        both = lay_over(self.common, self.variants[variant])
        return lay_over(both, {"run": {"seed": seed}})


def available(root: Path) -> list[str]:
    """Names of the experiments that are described."""
    return sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))


def load_experiment(root: Path, name: str) -> Experiment:
    """Read a description.

    Raises:
        DescriptionError: there is none of this name, or it is not valid.
    """
    if name not in available(root):
        found = ", ".join(available(root)) or "none"
        raise DescriptionError(f"no experiment {name!r}; there are: {found}")
    path = root / FOLDER / f"{name}.yaml"
    raw = read_yaml(path)
    values = {"name": name, "common": {}, "fit": "none", **raw}
    if unknown := set(values) - set(Experiment.__dataclass_fields__):
        raise DescriptionError(f"{path}: unknown key {sorted(unknown)[0]!r}")
    variants = values.get("variants")
    if isinstance(variants, Mapping):
        values["variants"] = {key: value or {} for key, value in variants.items()}
    try:
        return TypeAdapter(Experiment).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DescriptionError(f"{path}: {key}: {first['msg']}") from None


def read_seeds(text: str) -> list[int]:
    """`10-12,20` as 10, 11, 12, 20; a seed that is named twice counts once.

    Raises:
        DescriptionError: it is neither numbers nor ranges of them, or a range ends below its start.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise DescriptionError(f"--seeds: expected such as 10-17 or 0,1,2, found {text!r}")
        found = range(int(first), int(last if dash else first) + 1)
        if not found:
            raise DescriptionError(
                f"--seeds: {part.strip()} is empty; did you mean {last}-{first}?"
            )
        seeds += found
    return list(dict.fromkeys(seeds))
