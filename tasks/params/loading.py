"""`params.yaml` as frozen, typed values, fully checked; all problems are reported together."""

import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml.error import YAMLError

from feedback.annotators import LabelParams
from preferences.params import ValidateParams
from rlhf.bits import Bits
from rlhf.params.base import BaseParams
from rlhf.params.best_of_n import BestOfNParams
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.ppo import PPOParams
from rlhf.params.ranges import Count, CountOrZero
from rlhf.params.reward import RewardParams
from rlhf.params.sample import SampleParams
from rlhf.params.sft import SFTParams
from tasks.params.overlays import lay_over
from tasks.params.prepare import PrepareParams
from tasks.params.redaction import redact
from tasks.params.rules import NAMED_ALONE, impossible, left_out, secrets
from tasks.params.yaml_files import YAMLTooLargeError, load_yaml


class ParamsError(ValueError):
    """All problems of a params file, one per line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParams:
    """What every stage depends on."""

    seed: CountOrZero = 0
    """Every random stream of the pipeline is derived from it."""
    threads: Count = 2
    """CPU threads of torch; with portable bits 1 to 8 of them give the same results, but for small
    products (docs/reproducibility.md)."""
    processes: Count = 1
    """Of a stage that trains or samples: each has its share of every batch, and a GPU of its own if
    there are any (docs/how-to/several-gpus.md). The results are the same within rounding."""
    sharded: bool = False
    """Whether the processes divide the weights that they train, with their gradients and moments,
    among them; a model of which a GPU cannot hold all of that needs it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` uses a GPU if there is one."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of forward passes below the heads; trained weights and optimisers stay float32."""
    stored_precision: Literal["float32", "bfloat16"] = "float32"
    """Of the weights of base model, SFT, reward model and policy on disk. `bfloat16` halves them,
    and each stage starts from rounded weights (docs/models.md, Disk)."""
    generation: Literal["local", "server"] = "local"
    """Who samples responses outside PPO: the stage itself, or a server of the model's folder (vLLM;
    docs/how-to/responses-from-a-server.md), whose responses need not repeat."""
    bits: Bits = "portable"
    """`portable`: the instructions of AVX2 on every x86-64 processor, for the same results
    everywhere (docs/reproducibility.md says where that holds). `native`: what is fastest here;
    where the processor has AVX-512, training may take half the time, on an older AMD a few per cent
    less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportParams:
    """The report."""

    samples: Count = 12
    """Held-out prompts shown with the responses before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParams:
    """Where a round starts from."""

    policy: str
    """Policy that samples the responses to compare: models/sft or models/rounds/<key>/policy."""
    start: str
    """Weights that PPO starts from, usually the same: models/sft or models/rounds/<key>/policy."""
    reward_model: str
    """Reward model (or SFT model) that training starts from."""
    preferences: str
    """Preferences of the rounds before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The whole of params.yaml. Section name = stage name = module name."""

    run: RunParams
    prepare: PrepareParams
    base: BaseParams
    sft: SFTParams
    sample: SampleParams
    label: LabelParams
    validate: ValidateParams
    reward: RewardParams
    ppo: PPOParams
    evaluate: EvaluateParams
    best_of_n: BestOfNParams
    report: ReportParams
    rounds: dict[str, RoundParams]
    final: str


def load_params(path: Path) -> Params:
    """Read and check a params file.

    Raises:
        ParamsError: every problem with its dotted key, what was found and what is expected.
    """
    return check_params(read_yaml(path), path.parent, str(path))


def check_params(raw: Mapping[str, Any], folder: Path, place: str) -> Params:
    """Check values that were read; those that name a file do so below `folder`.

    Raises:
        ParamsError: as `load_params`, with the place in front of each problem.
    """
    sections, problems = _read_sections(raw)
    problems = [*unknown_keys(raw, Params, ""), *_not_finite(raw), *problems]
    problems += [f"{key}: {text}" for key, text in impossible(sections, folder)]
    problems += [f"{key}: {text}" for key, text in (*left_out(raw), *secrets(raw))]
    if problems:
        unique = list(dict.fromkeys(redact(problem) for problem in problems))
        raise ParamsError("\n".join(f"{place}: {problem}" for problem in unique))
    return Params(**sections)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML 1.2 mapping as plain values (`1e-5` is a number, as DVC reads it)."""
    try:
        raw = load_yaml(path)
    except FileNotFoundError:
        raise ParamsError(f"{path}: no such file") from None
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except YAMLError as error:
        raise ParamsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    except YAMLTooLargeError as error:
        raise ParamsError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected a mapping of sections, got {type(raw).__name__}")
    return raw


def section(params: Params, name: str) -> dict[str, Any]:
    """A section as plain values, for fingerprints and manifests."""
    value = getattr(params, name)
    plain: dict[str, Any] = dataclasses.asdict(value)
    return plain


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def unknown_keys(raw: object, kind: Any, prefix: str) -> Iterator[str]:
    """Unknown keys, each with the nearest known one."""
    if isinstance(raw, list):
        for number, value in enumerate(raw):
            yield from unknown_keys(value, kind, f"{prefix}{number}.")
        return
    kind = _dataclass_of(kind)
    if not isinstance(raw, Mapping) or kind is None:
        return
    if typing.get_origin(kind) is dict:
        for key, value in raw.items():
            yield from unknown_keys(value, typing.get_args(kind)[1], f"{prefix}{key}.")
        return
    hints = typing.get_type_hints(kind)
    for key, value in raw.items():
        if key in hints:
            yield from unknown_keys(value, hints[key], f"{prefix}{key}.")
            continue
        near = difflib.get_close_matches(str(key), hints, n=1)
        hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(hints)}"
        yield f"{prefix}{key}: unknown key; {hint}"


def _dataclass_of(kind: Any) -> Any:
    """The dataclass, or dict of dataclasses, in a type that may be optional."""
    options = [kind, *typing.get_args(kind)] if typing.get_origin(kind) is not dict else [kind]
    for option in options:
        if dataclasses.is_dataclass(option) or typing.get_origin(option) is dict:
            return option
    return None


def _not_finite(raw: Mapping[str, Any]) -> Iterator[str]:
    """Rejects NaN and infinity, which YAML has; a range check alone lets `.nan` through."""
    for key, value in flatten(raw).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key}: expected a finite number, found {value}"


def _read_sections(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The valid sections, and the problems of the others."""
    sections: dict[str, Any] = {}
    problems: list[str] = []
    for name, kind in typing.get_type_hints(Params).items():
        if raw.get(name) is None:
            asked = [
                f"{key.partition('.')[2]}: {default}"
                for key, default in NAMED_ALONE.items()
                if key.startswith(f"{name}.")
            ]
            empty = f"the section is empty; write {{{', '.join(asked)}}} to take all defaults"
            problems.append(f"{name}: {empty if name in raw else 'missing'}")
            continue
        # As JSON, since pydantic's strict mode takes mappings for dataclasses only there.
        text = json.dumps(_over_defaults(kind, raw[name]), default=str, skipkeys=True)
        try:
            sections[name] = TypeAdapter(kind).validate_json(text, strict=True)
        except ValidationError as error:
            problems += [_describe(name, entry) for entry in error.errors(include_url=False)]
    return sections, problems


def _over_defaults(kind: Any, values: object) -> object:
    """The file's section, in which a section within it is laid over what the code has in its place.

    Thus a line left out there takes the default of its owner, such as PPO's `optimiser.schedule`,
    and not that of all optimisers.
    """
    if not dataclasses.is_dataclass(kind) or not isinstance(values, Mapping):
        return values
    assert isinstance(kind, type)
    defaults = dataclasses.asdict(kind())
    inner = {key: value for key, value in values.items() if isinstance(defaults.get(key), Mapping)}
    return {**values, **lay_over({key: defaults[key] for key in inner}, inner)}


def _describe(section: str, entry: Any) -> str:
    key = ".".join(str(part) for part in (section, *entry["loc"]))
    if entry["type"] == "missing":
        return f"{key}: missing"
    if entry["type"] == "value_error":
        message = str(entry["ctx"]["error"])
        return message if message.startswith(key) else f"{key}: {message}"
    text = entry["msg"][0].lower() + entry["msg"][1:]
    return f"{key}: {text}, found {entry['input']!r}"
