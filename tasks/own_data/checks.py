"""Checks your own rows before the first stage: damage, leaks, too few prompts."""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data.support_desk.requests import parse_request
from preferences.allowing import load_allowed
from preferences.demonstrations import prompts_of
from preferences.formats.reading import Source
from preferences.formats.writing import Unsettled
from preferences.reader import MalformedDataError
from preferences.records import Preference, Prompt, Row
from preferences.schemas import CORPUS, shown
from preferences.source_params import SourceParams
from preferences.sources import opened
from preferences.splitting import split_of
from tasks.own_data.demonstration_notes import demonstration_notes
from tasks.own_data.fresh_prompts import prompt_notes
from tasks.own_data.prompt_forms import form_notes, form_problems
from tasks.own_data.rows import (
    MIN_EVALUATED,
    distinct,
    own_demonstrations,
    own_prompts,
    own_rows,
    own_split,
    question,
    read_preferences,
)
from tasks.own_data.scorer_templates import Roles, roles_of
from tasks.own_data.training_steps import step_notes
from tasks.params.loading import Params
from tasks.params.prepare import FilesParams

MAX_NAMED = 10
"""Columns that a note names."""
MAX_MEASURED = 1_000
"""About as many pairs of a source are measured in tokens."""


@dataclass(slots=True)
class OwnData:
    """Own files as far as they could be read, and what was found on the way."""

    root: Path
    problems: list[tuple[str, str]] = field(default_factory=list)
    """Key of params.yaml, and what is wrong."""
    notes: list[str] = field(default_factory=list)
    """What does not stop a run, but the user should know."""
    splits: dict[str, set[str]] = field(default_factory=dict)
    """Split -> what its prompts ask, as `question` has it."""
    prompts: dict[str, list[Prompt]] = field(default_factory=dict)
    """Split -> its prompts."""
    train_ids: set[str] = field(default_factory=set)
    """Ids of the prompts for training."""
    sides: dict[str, set[str]] = field(default_factory=lambda: {"train": set(), "heldout": set()})
    """Side -> what the initial preferences of all files so far ask there."""
    turns: dict[str, dict[Roles, Prompt]] = field(default_factory=dict)
    """Key of own rows -> who speaks in their prompts, with one of each."""
    pairs: dict[str, list[Preference]] = field(default_factory=dict)
    """Key of preferences -> some of them, spread evenly, to measure."""
    demonstrations: int = 0
    """How many there are."""
    training_pairs: int = 0
    """Initial preferences that are not held out, of the files that are here."""
    elsewhere: bool = False
    """There are more, in data sets of the hub."""

    def rows(self, key: str, path: str, read: Callable[[Path], list[Row]]) -> list[Row]:
        """The rows of a file; none, and a problem, where it is damaged or empty."""
        try:
            found = read(self.root / path)
        except MalformedDataError as error:
            self.damaged(key, error)
            return []
        if not found:
            self.problems.append((key, f"{path}: no row in it"))
        return found

    def damaged(self, key: str, error: MalformedDataError) -> None:
        """Note each line of an error, with paths as params have them."""
        lines = str(error).replace(f"{self.root}/", "").splitlines()
        self.problems += [(key, line) for line in lines]

    @property
    def evaluation(self) -> set[str]:
        """What the evaluation prompts ask; put together anew each time, so not for each row."""
        return self.splits.get("heldout", set()) | self.splits.get("test", set())


def examine(params: Params, root: Path) -> OwnData:
    """Read all own files that are there and compare them with each other."""
    data = OwnData(root)
    files = params.prepare.files
    if files is not None:
        _examine_prompts(data, files, params)
        _examine_demonstrations(data, files)
        if files.corpus is not None:
            data.rows("prepare.files.corpus", files.corpus, lambda path: own_rows(path, CORPUS))
    judged: set[str] = set()
    for key, pairs in _preferences(data, params):
        _examine_form(data, key, [pair.prompt for pair in pairs])
        _examine_pairs(data, key, pairs, params)
        if params.reward.margins and params.reward.model is None:
            _examine_margins(data, key, [pair.margin for pair in pairs])
        judged |= {pair.prompt_id for pair in pairs}
        data.training_pairs += sum(pair.split == "train" for pair in pairs)
        data.pairs[key] = pairs[:: len(pairs) // MAX_MEASURED + 1]
    if files is not None and judged and params.label.annotators != "none":
        _examine_fresh_prompts(data, files, judged, params)
    if files is not None:
        data.notes += prompt_notes(params, len(data.train_ids - judged))
    if not data.problems:  # Else not all rows were counted.
        demonstrations = params.prepare.demonstrations if files is None else data.demonstrations
        here = None if data.elsewhere else data.training_pairs
        data.notes += step_notes(params, demonstrations, here)
    return data


def _examine_prompts(data: OwnData, files: FilesParams, params: Params) -> None:
    key = "prepare.files.prompts"
    if not (rows := _distinct_prompts(data, key, files)):
        return
    _examine_form(data, key, [row["prompt"] for row in rows])
    data.prompts = {"train": [], "heldout": [], "test": []}
    for row in rows:
        split = own_split(row["prompt"], files)
        data.prompts[split].append(row["prompt"])
        if split == "train":
            data.train_ids.add(row["prompt_id"])
        data.splits.setdefault(split, set()).add(question(row["prompt"]))
    counts = {split: len(prompts) for split, prompts in data.prompts.items()}
    empty = [split for split, count in counts.items() if not count]
    if empty:
        none = f"none of the {len(rows)} prompts falls into split {', '.join(empty)}"
        wrong = f"{files.prompts}: {none}; add prompts or raise the fractions"
        data.problems.append((key, wrong))
    elif few := [split for split in ("heldout", "test") if counts[split] < MIN_EVALUATED]:
        one = f"only 1 of the {len(rows)} prompts falls into split {', '.join(few)}"
        wrong = f"{files.prompts}: {one}, expected {MIN_EVALUATED} or more; add prompts"
        data.problems.append((key, f"{wrong} or raise the fractions"))
    elif counts["train"] < params.sample.pairs:
        found = f"{params.sample.pairs}, but only {counts['train']} of the {len(rows)} prompts in"
        wrong = f"{found} {files.prompts} are for training; each is asked once"
        data.problems.append(("sample.pairs", wrong))
    strange = next((row for row in rows if not _of_the_support_desk(row["prompt"])), None)
    if params.label.annotators == "rubric" and strange is not None:
        wrong = (
            f"rubric, which covers the support desk only, but {files.prompts} asks "
            f"{str(strange['prompt'])[:60]!r}; use people, file, language_model or reward_model"
        )
        data.problems.append(("label.annotators", wrong))


def _distinct_prompts(data: OwnData, key: str, files: FilesParams) -> list[Row]:
    """The prompts that `prepare` keeps."""
    given = data.rows(key, files.prompts, own_prompts)
    rows = distinct(given)
    if more := len(given) - len(rows):
        data.notes.append(f"{key}: {more} of {len(given)} prompts repeat others and are left out")
    return rows


def _examine_fresh_prompts(
    data: OwnData, files: FilesParams, judged: set[str], params: Params
) -> None:
    """Whether the first round finds prompts that have no preference yet, as `sample` wants them."""
    fresh = data.train_ids - judged
    pairs = params.sample.pairs
    if len(fresh) < pairs <= len(data.train_ids):
        found = f"{pairs}, but only {len(fresh)} of the {len(data.train_ids)} prompts for training"
        ways = "add prompts, or set label.annotators to none if nobody is to label"
        wrong = f"{found} in {files.prompts} are without preferences; {ways}"
        data.problems.append(("sample.pairs", wrong))


def _examine_demonstrations(data: OwnData, files: FilesParams) -> None:
    key = "prepare.files.demonstrations"
    if files.demonstrations is None:
        data.notes.append(f"{key}: null, so SFT trains nothing and models/sft is the base model")
        return
    unread = set[str]()
    rows = data.rows(key, files.demonstrations, lambda path: own_demonstrations(path, unread))
    _note_unread(data, key, unread)
    data.demonstrations = len(rows)
    _examine_form(data, key, [prompt for row in rows for prompt in prompts_of(row)])
    data.notes += demonstration_notes(key, rows, data.evaluation)


def _examine_form(data: OwnData, key: str, prompts: Sequence[Prompt]) -> None:
    """Whether prompts came in another form than was meant, such as conversations as texts."""
    data.turns[key] = {roles_of(prompt): prompt for prompt in prompts}
    data.notes += form_notes(key, prompts)
    data.problems += ((key, problem) for problem in form_problems(prompts))


def _preferences(data: OwnData, params: Params) -> Iterator[tuple[str, list[Preference]]]:
    """Key -> the initial preferences, where they are present, each on its side."""
    files = params.prepare.files
    if files is not None and files.preferences is not None:
        key = "prepare.files.preferences"
        try:
            rows = read_preferences(data.root / files.preferences)
        except MalformedDataError as error:
            data.damaged(key, error)
        else:
            yield key, [Preference.from_row(row) for row in rows]
    for number, source in enumerate(params.prepare.sources):
        key = f"prepare.sources.{number}"
        if not (data.root / source.path).exists():
            data.elsewhere = True
            continue
        try:
            found = opened(_below(data.root, source))
            data.elsewhere |= found is None
            if found is not None:
                pairs = list(_sided(found, params))
                _note_unread(data, key, found.left_out)
                yield key, pairs
        except MalformedDataError as error:
            data.damaged(key, error)


def _note_unread(data: OwnData, key: str, columns: Set[str]) -> None:
    """Names columns that change nothing: a misspelt weight, or the system's words of a prompt."""
    if columns:
        names = ", ".join(map(shown, sorted(columns)[:MAX_NAMED]))
        more = ", ..." if len(columns) > MAX_NAMED else ""
        data.notes.append(f"{key}: columns that are not read: {names}{more}")


def _below(root: Path, source: SourceParams) -> SourceParams:
    return replace(source, path=str(root / source.path))


def _sided(source: Source, params: Params) -> Iterator[Preference]:
    """The pairs of a source that the gate looks at, each on the side where `prepare` puts it."""
    for sourced in Unsettled().settle(source, keep_ties=params.validate.ties == "half"):
        row = sourced.preference
        side = split_of(row.prompt, heldout_fraction=params.prepare.heldout_preferences)
        own = source.format == "preferences"
        yield row if own else replace(row, split=side)


def _examine_pairs(data: OwnData, key: str, pairs: list[Preference], params: Params) -> None:
    """What the gate of the first round would find between these files."""
    known = data.sides["train"] & data.sides["heldout"]
    evaluation, leaks, here = data.evaluation, 0, set[tuple[str, str]]()
    for pair in pairs:
        what_is_asked = question(pair.prompt)
        data.sides[pair.split].add(what_is_asked)
        here.add((what_is_asked, pair.split))
        leaks += pair.split == "train" and what_is_asked in evaluation
    if leaks:
        what = f"{leaks} of {len(pairs)} pairs are for training and have prompts that policies are"
        _leak(data, key, "evaluation_leaks", f"{what} evaluated on", params)
    if both := (data.sides["train"] & data.sides["heldout"]) - known:
        what = f"{len(both)} prompts are on the train side and on the held-out side"
        if any((one, side) not in here for one in both for side in data.sides):
            what += " of this file and those named before it"
        _leak(data, key, "split_leaks", what, params)


def _examine_margins(data: OwnData, key: str, margins: Sequence[float]) -> None:
    """Whether they are in the units of scores, while graded labels have 0 to 1."""
    if large := [margin for margin in margins if margin > 1]:
        data.notes.append(
            f"{key}: {len(large)} of {len(margins)} pairs have margins above 1 (up to "
            f"{max(large):g}), as from scores in units of their own; the reward model is asked for "
            "gaps of so much: scale the scores, or set reward.margins to false for plain labels"
        )


def _leak(data: OwnData, key: str, rule: str, what: str, params: Params) -> None:
    """A problem where the gate is certain to block, else a note."""
    severity = getattr(params.validate.severities, rule)
    allowed = data.root / "data/allowed.jsonl"
    put_back = any(name == rule for _, name in load_allowed(allowed)) if allowed.exists() else False
    if severity == "error" and params.validate.limit(rule) == 0 and not put_back:
        way_out = f"remove them, or set validate.severities.{rule} to quarantine"
        data.problems.append((key, f"{what}; the gate of the first round would block: {way_out}"))
    elif severity != "off":
        data.notes.append(f"{key}: {what} ({rule}: {severity})")


def _of_the_support_desk(prompt: Any) -> bool:
    return isinstance(prompt, str) and parse_request(prompt) is not None
