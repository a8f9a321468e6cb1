"""The model card and the data card of a trained model, in Markdown.

Everything in them is read from what the pipeline has written: `dvc.lock`, the metrics of the
stages, and the items that formed the model. Annotators appear by number only, never by name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rlhf.params.rule_rewards import RewardMixParams
from tasks.params.loading import flatten
from tasks.params.redaction import redact, redact_values
from tasks.promoting.sources import Sources
from tasks.reporting.data import GateVerdict
from tasks.tracking.registered_names import registered_name, round_of
from tasks.workspace.work_folder import GUARDS

MODEL_CARD, DATA_CARD = "model-card.md", "data-card.md"
JUDGES = {
    "gold": "the embedded task's rubric (gold)",
    "reward_model": "the round's reward model",
    "mixed_reward": "the round's reward model and the rules, or the function",
    "rules": "the rules, or the function, of ppo.rewards",
    "label.language_model": "the language model of label.language_model",
    "label.reward_model": "the reward model of label.reward_model",
}
MEASURES = (
    ("gold", "gold score (of 10)"),
    ("win_rate_vs_sft", "win rate over SFT"),
    ("win_rate_vs_previous", "win rate over the policy before"),
    ("kl", "KL to SFT (nats per response)"),
    ("length", "length (tokens)"),
    ("finished", "share of finished responses"),
    ("distinct_2", "share of different word pairs"),
    ("proxy", "score"),
    ("pairs", "pairs for training, so far"),
    ("accuracy_before", "newest pairs ordered as by gold, else by labels, before training"),
    ("accuracy_after", "newest pairs ordered as by gold, else by labels, after training"),
    ("heldout_accuracy", "all held-out pairs ordered as by their labels"),
    ("ece", "calibration error"),
)
PROXIES = {
    "reward_model": "score of the reward model",
    "rules": "score by ppo.rewards, without a reward model",
    "mixed_reward": "score by ppo.rewards, reward model and rules, or function, together",
}
"""What rewarded a policy -> what its score is called."""
REWARDS = TypeAdapter(RewardMixParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained model and what the pipeline recorded of it."""

    path: str
    digest: str
    stage: str
    commit: str
    deps: Mapping[str, str]
    """Path -> hash of what the stage read."""
    params: Mapping[str, Any]
    """Of the stage, as dvc.lock has them."""
    heldout: Mapping[str, Any] | None
    """Metrics; None: not measured yet."""
    test: Mapping[str, Any] | None
    guards: str
    """What the guards of the reward model found, in Markdown; empty where there are none."""

    @property
    def title(self) -> str:
        """Such as `Policy of round r3`."""
        if self.path == "models/sft":
            return "SFT policy"
        kind = "Reward model" if self.path.endswith("/reward") else "Policy"
        return f"{kind} of round {round_of(self.path)}"


def summary(model: Trained) -> str:
    """The description of a version: what it is, and its figures."""
    lines = [f"{model.title}, `{model.path}`, DVC hash `{model.digest}`, commit {model.commit}."]
    return "\n\n".join([*lines, "\n".join(_evaluation(model))])


def model_card(model: Trained) -> str:
    """What a model is, how it was made, what was measured, and what that does not say."""
    made_from = [
        f"| {path} | `{digest}` |"
        for path, digest in sorted(model.deps.items())
        if path.startswith(("data/", "models/")) and not path.endswith((".py", "withdrawn"))
    ]
    params = flatten(redact_values(model.params))
    values = [f"| {key} | {redact(str(value))} |" for key, value in sorted(params.items())]
    parts = [
        f"# {model.title}",
        f"A version of `{registered_name(model.path)}`. Written by the stage `{model.stage}` as "
        f"`{model.path}`, DVC hash `{model.digest}`, at commit {model.commit}.",
        "## Made from",
        "\n".join(["| what | DVC hash |", "|---|---|", *made_from]),
        f"The people and texts behind it are in `{DATA_CARD}`.",
        "## Params of the stage",
        "\n".join(["| key | value |", "|---|---|", *values]),
        "## Evaluation",
        "\n".join(_evaluation(model)),
        *([model.guards.replace("# The", "## The", 1).strip()] if model.guards else []),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(model)),
    ]
    return "\n\n".join(parts) + "\n"


def data_card(model: Trained, sources: Sources | None, gate: Iterable[GateVerdict]) -> str:
    """What a model has learnt from: counts, annotators by number, what the data gate said.

    Args:
        model: the model.
        sources: what formed it; None where its files are not on this machine.
        gate: the verdicts on the preferences of the rounds so far.
    """
    parts = [f"# Data behind: {model.title}", f"`{model.path}`, DVC hash `{model.digest}`."]
    if sources is None:
        parts.append("Its data are not on this machine, so nothing could be counted.")
    else:
        parts += list(_counted(sources))
    checked = [
        f"| {one.round} | {one.verdict} | {one.fresh:,} | {one.quarantined:,} | "
        f"{'; '.join(one.objections) or '-'} |"
        for one in gate
    ]
    if checked:
        head = [
            "| round | verdict | new pairs | quarantined | findings |",
            "|---|---|---:|---:|---|",
        ]
        parts += ["## What the data gate found", "\n".join([*head, *checked])]
    limits = (
        "Counts are of all labels behind the model and the models before it, also of those that "
        "the gate left out or that are held out to measure it. Held-out and test prompts are not "
        "among them.",
        "Annotators are numbered anew in each card, the one with the most judgments first; "
        "`python -m tasks.lineage` names them to those who may read the data.",
        "What was withdrawn later is not taken out of this card or of the model; the version then "
        "has the tag `withdrawn`.",
        "The gate looks for defects of form, for leaks and for personal data by patterns. It does "
        "not say whether the annotators are right, or whom they stand for.",
    )
    parts += ["## Limits", "\n".join(f"- {line}" for line in limits)]
    return "\n\n".join(parts) + "\n"


def _counted(sources: Sources) -> Iterator[str]:
    rows = [
        f"| {kind} | {source} | {number:,} |"
        for (kind, source), number in sorted(sources.counts.items(), key=_in_order)
    ]
    yield "## What it learnt from"
    yield "\n".join(["| what | source | number |", "|---|---|---:|", *rows])
    if not sources.judgments:
        return
    yield "## Judgments"
    uses = Counter[str]()
    for (_, use), number in sources.uses.items():
        uses[use] += number
    rows = [f"| {use} | {number:,} |" for use, number in sorted(uses.items(), key=_in_order)]
    yield "\n".join(["| round and use | judgments |", "|---|---:|", *rows])
    by_kind: dict[str, list[int]] = {}
    for (kind, _), number in sources.judgments.most_common():
        by_kind.setdefault(kind, []).append(number)
    rows = [
        f"| {kind} | {len(numbers)} | "
        f"{', '.join(f'{place}: {number:,}' for place, number in enumerate(numbers, 1))} |"
        for kind, numbers in sorted(by_kind.items())
    ]
    yield "\n".join(
        ["| kind of annotator | annotators | judgments by annotator |", "|---|---:|---|", *rows]
    )


def _in_order(counted: tuple[str | tuple[str, ...], int]) -> list[tuple[int, str]]:
    """Round r2 before r10."""
    name = counted[0] if isinstance(counted[0], str) else " ".join(counted[0])
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _evaluation(model: Trained) -> Iterator[str]:
    if model.heldout is None:
        yield "Not measured when this was written."
        return
    tested = ["test prompts"] if model.test else []
    yield f"| | {' | '.join(['held out', *tested])} |"
    yield f"|---|{'---|' * (1 + len(tested))}"
    sides = [model.heldout, *([model.test] if model.test else [])]
    for key, words in MEASURES:
        if model.heldout.get(key) is not None:
            cells = [_shown(side.get(key)) for side in sides]
            name = PROXIES[_rewarded_by(model.params)] if key == "proxy" else words
            yield f"| {name} | {' | '.join(cells)} |"


def _rewarded_by(params: Mapping[str, Any]) -> str:
    """What the score of a policy comes from, by the params of its stage: a key of `PROXIES`."""
    known = {field.name for field in fields(RewardMixParams)}
    section = (params.get("ppo") or {}).get("rewards") or {}
    rewards = REWARDS.validate_python({key: section[key] for key in section if key in known})
    if rewards.learned == 0:
        return "rules"
    return "mixed_reward" if rewards.rules() else "reward_model"


def _limits(model: Trained) -> Iterator[str]:
    if model.heldout is not None and (judge := model.heldout.get("win_rate_judge")):
        said = JUDGES.get(judge, judge)
        yield (
            f"Win rates are by {said}, on prompts like those it was trained on, with one response "
            "each; intervals are of 95 % and know nothing of other seeds or other prompts."
        )
    if model.path.endswith("/reward"):
        yield (
            "It orders responses to prompts like these, written by the policies of its rounds; a "
            "policy that is trained long enough against it finds what it gets wrong."
        )
    else:
        yield (
            "No test for harmful, false or private responses was made beyond what the judge looks "
            "at. A person decides whether it may be used, and for what."
        )
    yield "It knows what its data show and no more; the data card says what these are."


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        mean = value.get("mean")
        if mean is None:
            return "-"
        if "low" in value:
            return f"{mean:.3f} [{value['low']:.3f}, {value['high']:.3f}], n = {value['n']}"
        return f"{mean:.3f}"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


def guards_page(root: Path, round_key: str) -> str:
    """What the guards of a round's reward model wrote, empty where they did not."""
    page = root / "results" / "reward" / round_key / GUARDS
    return page.read_text(encoding="utf-8") if page.is_file() else ""
