"""What differs between two sides: params, data, code, reward models and results."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf.intervals import mean_interval
from tasks.comparing.sides import Side
from tasks.running.amounts import amount
from tasks.tracing.contents import FOLDER, ContentError, Contents
from tasks.workspace.git import GitError, git

ABSENT = "-"
OTHER_JUDGES = "other models as judges"
BY_REWARD = ("reward_model", "mixed_reward", "rules")
"""Judges of win rates that are what rewarded the round."""
CODE = (".py", ".css", ".j2", ".yaml")
OF_NO_STAGE = ("tests/", "benchmarks/", "experiments/", "flows/")


class UnknownError(Exception):
    """What a side had is not known; the message says why."""


@dataclass(frozen=True, slots=True)
class Differing:
    """One thing that is not the same on both sides, in words."""

    name: str
    first: str
    second: str
    note: str = ""


def params(first: Side, second: Side) -> list[Differing]:
    """Params with different values; where only one side states defaults, those both state."""
    keys = list(dict.fromkeys([*first.params, *second.params]))
    if first.complete != second.complete:
        keys = [key for key in keys if key in first.params and key in second.params]
    pairs = [(key, first.params.get(key, ABSENT), second.params.get(key, ABSENT)) for key in keys]
    return [Differing(key, one, other) for key, one, other in pairs if one != other]


def data(first: Side, second: Side) -> list[Differing]:
    """Data sets of other content, or of one side only, with their numbers of rows.

    Raises:
        UnknownError: a run in MLflow made no data that the other side has.
    """
    ours, theirs = _data(first), _data(second)
    found = []
    # MLflow knows only the stages that a run ran itself: what it lacks may be there.
    partly = "run" in (first.kind, second.kind)
    if partly and not ours.keys() & theirs.keys():
        raise UnknownError("MLflow names only what a run made itself: here nothing that both have")
    for path in sorted(ours.keys() & theirs.keys() if partly else ours.keys() | theirs.keys()):
        digests = (ours.get(path), theirs.get(path))
        if digests[0] != digests[1]:
            words = [
                ABSENT if digest is None else _rows(Contents(one.root), path, digest)
                for one, digest in zip((first, second), digests, strict=True)
            ]
            found.append(Differing(path, *words))
    return found


def code(root: Path, first: Side, second: Side) -> list[str]:
    """Files of code that the stages used in different versions, or those of one side only.

    Raises:
        UnknownError: a side has no hashes of code, and git cannot compare the commits.
    """
    ours, theirs = _code(first, second), _code(second, first)
    if ours and theirs:
        paths = sorted(ours.keys() | theirs.keys())
        differing = [path for path in paths if ours.get(path) != theirs.get(path)]
        return [
            path
            if path in ours and path in theirs
            else f"{path} (only {'A' if path in ours else 'B'})"
            for path in differing
        ]
    # MLflow does not have the hashes of code, only the commit.
    for letter, one in (("A", first), ("B", second)):
        _require_commit(root, letter, one.commit)
    used = ours or theirs
    known = first.commit if ours else second.commit
    try:
        listed = git(root, "diff", "--name-only", first.commit, second.commit, "--", "*.py")
        there = git(root, "ls-tree", "-r", "--name-only", known).splitlines() if used else ()
    except GitError as error:
        raise UnknownError(str(error)) from None
    # What the side with hashes has and did not use is of no stage; what it lacks the run may have
    # used. Of two runs nobody says.
    unused = set(there) - used.keys()
    return [
        path
        for path in listed.splitlines()
        if path not in unused and not path.startswith(OF_NO_STAGE)
    ]


def _require_commit(root: Path, letter: str, commit: str) -> None:
    if not commit:
        raise UnknownError(f"of {letter} no commit is known")
    try:
        git(root, "cat-file", "-e", f"{commit}^{{commit}}")
    except GitError:
        raise UnknownError(f"commit {commit[:9]} is not here") from None


def policies(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    apart: Mapping[str, str] = MappingProxyType({}),
    others: Container[str] = (),
) -> list[Differing]:
    """Each measure of each policy that a side evaluated, from `build_results` of each.

    Args:
        ours: of the first side.
        theirs: of the second.
        apart: rounds that the sides score otherwise -> why (`rewards.other_rewards`).
        others: judges that are not the same model on both sides (`rewards.other_judges`).
    """
    measures = ("gold", "proxy", "win_rate_vs_sft", "kl", "length", "finished", "distinct_2")
    judges = [
        {policy["name"]: policy.get("win_rate_judge") for policy in side["policies"]}
        for side in (ours, theirs)
    ]
    incomparable = {
        f"{name} win_rate_vs_sft": f"other judges: {first}, {second}"
        for name, first in judges[0].items()
        if (second := judges[1].get(name, first)) != first
    }
    for name, judge in judges[0].items():
        if judge in others:
            incomparable.setdefault(f"{name} win_rate_vs_sft", OTHER_JUDGES)
        if name in apart:
            incomparable[f"{name} proxy"] = apart[name]
            if judge in BY_REWARD:
                incomparable.setdefault(f"{name} win_rate_vs_sft", apart[name])
    return [
        replace(row, note=row.note and incomparable.get(row.name, row.note))
        for row in _measures("name", ours["policies"], theirs["policies"], measures)
    ]


def reward_models(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Differing]:
    """Each measure of each round's reward model."""
    measures = ("pairs", "accuracy_before", "accuracy_after", "longer_wins", "ece")
    return _measures("round", ours["reward_models"], theirs["reward_models"], measures)


def paired_gold(first: Path, second: Path, rounds: Sequence[str]) -> dict[str, str]:
    """Round -> gold of the second minus the first on the prompts that both answered, in words."""
    found = {}
    for key in rounds:
        ours, theirs = _gold(first, key), _gold(second, key)
        common = sorted(ours.keys() & theirs.keys())
        if len(common) > 1:
            by = mean_interval([theirs[prompt] - ours[prompt] for prompt in common])
            found[key] = f"{by.mean:+.2f} ({by.low:+.2f} to {by.high:+.2f}, {by.n} prompts)"
    return found


def _measures(
    key: str,
    ours: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]],
    measures: Sequence[str],
) -> list[Differing]:
    rows = []
    first, second = ({one[key]: one for one in side} for side in (ours, theirs))
    for name in dict.fromkeys([*first, *second]):
        for measure in measures:
            one, other = (_taken(side.get(name, {}).get(measure)) for side in (first, second))
            if one != other:
                both = one is not None and other is not None
                by = f"{_number(other) - _number(one):+.3g}" if both else ""
                rows.append(Differing(f"{name} {measure}", _words(one), _words(other), by))
    return rows


def _taken(value: Any) -> Any:
    """A measure; None where it could not be taken, as the proxy of SFT without a reward model."""
    return None if isinstance(value, Mapping) and value["mean"] is None else value


def _number(value: Any) -> float:
    return float(value["mean"] if isinstance(value, Mapping) else value)


def _words(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, Mapping) and "low" in value:
        return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
    number = _number(value)
    return f"{number:,.0f}" if number == int(number) else f"{number:.3f}"


def _gold(folder: Path, key: str) -> dict[str, float]:
    path = folder / "results" / "evaluate" / key / "samples.jsonl"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["prompt_id"]: float(row["gold"]) for row in rows if row.get("gold") is not None}


def _data(one: Side) -> dict[str, str]:
    return {
        path: digest
        for ran in one.runs
        for path, digest in ran.outs.items()
        if path.startswith("data/")
    }


def _code(one: Side, other: Side) -> dict[str, str]:
    """Path -> md5 of the code of a side's runs, without stages that the other has not run yet."""
    return {
        path: digest
        for ran in one.runs
        if ran.stage not in other.others
        for path, digest in ran.deps.items()
        if path.endswith(CODE)
    }


def _rows(contents: Contents, path: str, digest: str) -> str:
    try:
        files = {path: digest}
        if digest.endswith(FOLDER):
            files = {f"{path}/{n}": md5 for n, md5 in contents.files(path, digest).items()}
        texts = [contents.file(name, md5).read_bytes() for name, md5 in files.items()]
    except ContentError:
        return f"{digest[:9]} (not here)"
    rows = sum(1 for text in texts for line in text.split(b"\n") if line.strip())
    return f"{digest[:9]} {amount(rows, 'row')}"
