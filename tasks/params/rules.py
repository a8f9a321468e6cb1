"""Rules of params.yaml across fields and sections: impossible combinations."""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from feedback.annotators import LabelParams
from feedback.judgments import KINDS
from preferences.params import ValidateParams
from rlhf.bits import MAX_THREADS
from rlhf.params.base import BaseParams, EmbeddedModelParams
from rlhf.params.ppo import PPOParams
from rlhf.params.reward import NO_MODEL, RewardParams
from tasks.params.prepare import PrepareParams
from tasks.params.score_scale import scale_of

Problem = tuple[str, str]
"""Dotted key, and what is wrong with it."""

LONGEST_KEY = 64
"""Characters of a round's key: it is part of names of files, and a column of the store."""
NAMED_ALONE: Mapping[str, object] = MappingProxyType(
    {"label.annotators": LabelParams().annotators, "reward.max_tokens": RewardParams().max_tokens}
)
"""Keys that a stage depends on without the rest of their section -> their defaults."""
SFT = "sft"
"""What the baseline is called among the rounds, as in metrics/rounds/sft.json."""

_WITH_PASSWORD = re.compile(r"https?://[^/@\s]+@|\w[\w+.-]*://[^/@:\s]*:[^/@\s]+@")
"""An address with a password in it; before http, a user alone is a token."""


def secrets(value: object, key: str = "") -> Iterator[Problem]:
    """Addresses with a password: DVC copies params to dvc.lock, and MLflow shows them."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from secrets(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from secrets(inner, f"{key}.{number}")
    elif isinstance(value, str) and _WITH_PASSWORD.search(value):
        yield (
            key,
            "the address holds a password, which dvc.lock and MLflow would show; leave it out, and "
            "set it in the environment (a label store: RLHF_FEEDBACK_STORE or PGPASSWORD; a "
            "language model: the variable that api_key_variable names)",
        )


def left_out(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys without which DVC refuses a stage: it knows no default of theirs."""
    for key, default in NAMED_ALONE.items():
        section, _, name = key.partition(".")
        values = raw.get(section)
        if isinstance(values, Mapping) and name not in values:
            yield key, f"missing; DVC follows it by itself, so write it (default: {default})"


def impossible(sections: Mapping[str, Any], folder: Path) -> Iterator[Problem]:
    """Impossible combinations in the sections that are sound by themselves.

    Args:
        sections: name -> value of its type; those with a wrong type or value are left out, and
            with them the rules that need them.
        folder: what relative paths start from.
    """
    if (run := sections.get("run")) is not None:
        yield from _run_problems(run, sections.get("ppo"))
        yield from _sharding_problems(run, sections)
    if (ppo := sections.get("ppo")) is not None:
        yield from ((f"ppo.{key}", text) for key, text in ppo.problems())
    if (base := sections.get("base")) is not None:
        yield from _base_problems(base, folder)
        yield from _embedded_problems(base.embedded)
    yield from _data_problems(sections)
    if (validate := sections.get("validate")) is not None:
        yield from _validate_problems(validate, sections.get("rounds"))
    yield from _preference_problems(sections)
    if (rounds := sections.get("rounds")) is not None:
        yield from _round_problems(rounds)
        yield from _scale_problems(sections, rounds)
        if rounds and (final := sections.get("final")) not in (None, *rounds):
            yield "final", f"{final!r} is not one of the rounds: {', '.join(rounds)}"


def _validate_problems(
    validate: ValidateParams, rounds: Mapping[str, Any] | None
) -> Iterator[Problem]:
    yield from _unknown_kinds("validate.weights", validate.weights)
    if rounds is not None:
        for key in sorted(set(validate.human_labels) - set(rounds)):
            yield f"validate.human_labels.{key}", f"not one of the rounds: {', '.join(rounds)}"


def _unknown_kinds(key: str, weights: Mapping[str, float]) -> Iterator[Problem]:
    for kind in sorted(set(weights) - set(KINDS)):
        yield f"{key}.{kind}", f"no kind of annotator, expected one of {', '.join(KINDS)}"


def _has_pairs(prepare: PrepareParams) -> bool:
    """Whether preferences are brought along."""
    return bool(prepare.sources or (prepare.files and prepare.files.preferences))


def _run_problems(run: Any, ppo: PPOParams | None) -> Iterator[Problem]:
    if run.bits == "portable" and run.threads > MAX_THREADS:
        yield (
            "run.threads",
            f"expected at most {MAX_THREADS} with run.bits: portable, since more give "
            f"other results, found {run.threads}; or set run.bits: native",
        )
    if ppo is not None and run.processes > (rows := ppo.rollout_size // ppo.minibatches):
        yield (
            "run.processes",
            f"{run.processes}, but a minibatch of ppo has {rows} responses, and each process needs "
            "one; lower it or ppo.minibatches",
        )


def _sharding_problems(run: Any, sections: Mapping[str, Any]) -> Iterator[Problem]:
    if not run.sharded:
        return
    if run.processes == 1:
        yield (
            "run.sharded",
            "true, but run.processes is 1: weights are divided among processes; expected 2 or more",
        )
    for name in ("sft", "reward", "ppo"):
        if getattr(sections.get(name), "lora", None) is not None:
            yield (
                "run.sharded",
                f"true, but {name}.lora is set: an adapter's moments take next to nothing, and "
                "what it lies on is not divided; take one of the two",
            )


def _data_problems(sections: Mapping[str, Any]) -> Iterator[Problem]:
    prepare, base, sample = (sections.get(name) for name in ("prepare", "base", "sample"))
    if prepare is None:
        return
    if prepare.files is None:
        if sample is not None and sample.pairs > prepare.train_prompts:
            yield (
                "sample.pairs",
                f"{sample.pairs} is above prepare.train_prompts ({prepare.train_prompts})",
            )
        return
    if prepare.files.heldout_fraction + prepare.files.test_fraction >= 1:
        yield "prepare.files", "heldout_fraction and test_fraction leave no training prompts"
    if prepare.files.corpus is None and base is not None and base.model is None:
        yield (
            "prepare.files.corpus",
            "required to pre-train the embedded model; or name a model of your own in base.model",
        )
    if prepare.files.demonstrations is None and base is not None and base.model is None:
        yield (
            "prepare.files.demonstrations",
            "required by the embedded model, which answers nobody before SFT; or name a model of "
            "your own in base.model",
        )


def _preference_problems(sections: Mapping[str, Any]) -> Iterator[Problem]:
    """Where nobody labels, the preferences have to come from somewhere."""
    label, prepare, reward = (sections.get(name) for name in ("label", "prepare", "reward"))
    ppo, evaluate = sections.get("ppo"), sections.get("evaluate")
    judge = "reward" if evaluate is None else evaluate.judge
    if label is not None and judge != "reward" and getattr(label, judge) is None:
        yield "evaluate.judge", f"{judge}, but label.{judge} is missing"
    if reward is not None and reward.model == NO_MODEL and ppo is not None and ppo.rewards.learned:
        yield "reward.model", "none, but ppo.rewards.learned is above 0: give the score by rules"
    if prepare is not None and reward is not None and not _has_pairs(prepare):
        # Pairs that are brought along may name any source.
        yield from _unknown_kinds("reward.source_weights", reward.source_weights)
    if label is None or label.annotators != "none" or (reward is not None and reward.model):
        return
    if prepare is not None and not _has_pairs(prepare):
        yield (
            "label.annotators",
            "none, and there are no preferences to train a reward model on: name some under "
            "prepare.sources",
        )
    if reward is not None and reward.preferences == "newest":
        yield (
            "reward.preferences",
            "newest, but label.annotators is none: no round has any; take all",
        )


def _scale_problems(sections: Mapping[str, Any], rounds: Mapping[str, Any]) -> Iterator[Problem]:
    """A scale has a deviation, and that needs two scores."""
    sample, reward = sections.get("sample"), sections.get("reward")
    if sample is None or reward is None:
        return
    scale = scale_of(sample, reward, rounds)
    if scale is not None and scale.responses < 2:
        yield (
            "sample.against_sft",
            f"{sample.against_sft} of {sample.pairs} pairs has {scale.responses} of SFT's "
            f"responses, and in {scale.round_key} scores are scaled by at least 2 (by dozens, to "
            "be steady)",
        )


def _base_problems(base: BaseParams, folder: Path) -> Iterator[Problem]:
    model = base.model
    if model is None and base.chat_template_args:
        yield "base.chat_template_args", "the embedded model's chat template takes none"
    if model is None or (folder / model).exists():  # Of a file, the preflight says so.
        return
    if model.startswith((".", "/")) or base.revision is None:
        hub = "" if model.startswith((".", "/")) else "; of a model of the hub, name base.revision"
        yield "base.model", f"{model}: no such model folder{nearest(folder / model)}{hub}"


def nearest(path: Path) -> str:
    """What lies beside a path that is not there and has nearly its name, for an error."""
    names = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _embedded_problems(embedded: EmbeddedModelParams) -> Iterator[Problem]:
    if embedded.hidden_size % embedded.heads:
        yield (
            "base.embedded.heads",
            f"hidden_size {embedded.hidden_size} cannot be cut into {embedded.heads} heads",
        )
    elif embedded.hidden_size // embedded.heads % 2:
        yield "base.embedded.heads", "hidden_size / heads must be even for rotary positions"
    if embedded.sequence_length > embedded.max_positions:
        yield (
            "base.embedded.sequence_length",
            f"{embedded.sequence_length} is above max_positions ({embedded.max_positions})",
        )


def _round_problems(rounds: Mapping[str, Any]) -> Iterator[Problem]:
    """A round may start from SFT or from what an earlier round makes."""
    if not rounds:
        yield "rounds", "at least one round is needed"
    known = {
        "policy": ["models/sft"],
        "start": ["models/sft"],
        "reward_model": ["models/sft"],
        "preferences": ["data/prepared/preferences"],
    }
    for key, entry in rounds.items():
        if not key.isidentifier() or len(key) > LONGEST_KEY:
            words = f"a round's key is at most {LONGEST_KEY} letters, digits and underscores"
            yield f"rounds.{key}", words
        if key == SFT:
            yield f"rounds.{key}", "sft names the baseline's results; give the round another key"
        for name, paths in known.items():
            value = getattr(entry, name)
            if value not in paths:
                yield f"rounds.{key}.{name}", f"{value!r} is none of {', '.join(paths)}"
        known["policy"].append(f"models/rounds/{key}/policy")
        known["start"].append(f"models/rounds/{key}/policy")
        known["reward_model"].append(f"models/rounds/{key}/reward")
        known["preferences"].append(f"data/rounds/{key}/preferences")
