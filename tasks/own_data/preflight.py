"""Checks what params.yaml names outside the pipeline, before anything starts.

Each stage checks its own inputs again. Drivers call this first, so that an unusable base model is
not discovered only by the second stage, or a missing annotator only by the sixth.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from feedback.formats.label_studio import is_export, read_export
from feedback.judgments import read_judgments
from preferences.records import JudgmentError
from tasks.own_data.files import Named, follow, named_paths, rewrite_definition
from tasks.own_data.fresh_prompts import prompt_notes
from tasks.own_data.hub_checks import Problem
from tasks.own_data.model_checks import model_notes, model_problems
from tasks.own_data.prompt_lengths import length_notes, length_problems
from tasks.own_data.scorer_templates import turn_problems
from tasks.own_data.servers import server_notes
from tasks.params.loading import Params, ParamsError
from tasks.params.plotted_rounds import with_rounds
from tasks.params.rules import nearest
from tasks.params.score_scale import scale_notes

OUTPUTS = (
    "data/prepared", "data/rounds", "models/base", "models/sft", "models/rounds", "results",
    "reports",
)  # fmt: skip
"""Where the stages write."""

UNUSABLE = {
    "[{}]": "DVC takes braces in the path of a checkout for a value's place",
    "[?]": "in the address of MLflow's database, ? ends the path",
    "[$][A-Za-z_]": "Great Expectations takes $ before a letter for a variable",
}
"""Signs in the path of a checkout with which no run comes to its end, or writes elsewhere."""

ALLOWED = "data/allowed.jsonl"
"""Exceptions from the gate, which `validate` reads."""

FOLDERS = ("base.model", "label.reward_model", "reward.model")
DATA = (
    "prepare.sources", "prepare.files.prompts", "prepare.files.demonstrations",
    "prepare.files.corpus",
)  # fmt: skip
"""What may be a file or a folder."""

_log = logging.getLogger(__name__)


def check_inputs(params: Params, root: Path) -> None:
    """Check everything that params name, and update dvc.yaml to match.

    What does not stop a run, but the user should know, is logged as a warning.

    Raises:
        ParamsError: every problem with its key, in the order of the sections; or the folder has a
            name that DVC or MLflow reads as something else.
    """
    _check_place(root)
    problems = [*_path_problems(params, root), *model_problems(params, root)]
    notes = [*server_notes(params), *scale_notes(params.sample, params.reward, params.rounds)]
    notes += [] if problems else model_notes(params, root)
    if params.prepare.files is None:
        notes += prompt_notes(params, params.prepare.train_prompts)
    problems += _list_problems(params, root)
    # Rows are compared by the gate's exceptions, too.
    damaged = any(key.startswith(("prepare.", "validate.")) for key, _ in problems)
    if not damaged and (params.prepare.files is not None or params.prepare.sources):
        # Imported here: the embedded world has no rows to look at.
        from tasks.own_data.checks import examine  # noqa: PLC0415

        data = examine(params, root)
        if not problems:
            problems += turn_problems(params, root, data.turns)
            if data.prompts:
                problems += length_problems(params, root, data.prompts)
            notes += length_notes(params, root, data.pairs)
        problems, notes = problems + data.problems, notes + data.notes
    # First, so that whoever mends the problems knows of these as well.
    for note in notes:
        _log.warning("%s", note)
    if problems:
        sections = list(asdict(params))
        problems.sort(key=lambda problem: sections.index(problem[0].partition(".")[0]))
        lines = [f"{root / 'params.yaml'}: {key}: {text}" for key, text in problems]
        raise ParamsError("\n".join(dict.fromkeys(lines)))
    follow(root, params)
    rewrite_definition(root, lambda text: with_rounds(text, params.rounds))


def _list_problems(params: Params, root: Path) -> Iterator[Problem]:
    """Files that only a later stage reads: judgments, words of a reward, the gate's exceptions."""
    judged = params.label.file if params.label.annotators == "file" else None
    if judged and (root / judged).is_file():
        try:
            _read_judged(root / judged, next(iter(params.rounds)))
        except JudgmentError as error:
            yield "label.file", _below(root, error)
    if (words := params.ppo.rewards.sentiment_words) and (root / words).is_file():
        from rlhf.rule_rewards import WordListError, load_sentiment_words  # noqa: PLC0415

        try:
            load_sentiment_words(root / words)
        except WordListError as error:
            yield "ppo.rewards.sentiment_words", _below(root, error)
    if (root / ALLOWED).is_file():
        from preferences.allowing import load_allowed  # noqa: PLC0415
        from preferences.reader import MalformedDataError  # noqa: PLC0415

        try:
            load_allowed(root / ALLOWED)
        except MalformedDataError as error:
            yield "validate.severities", _below(root, error)


def _read_judged(path: Path, round_key: str) -> None:
    """Reads judgments as `label` does, and keeps none; raises JudgmentError."""
    if is_export(path):
        read_export(path, round_key)
    else:
        read_judgments(path)


def _below(root: Path, error: Exception) -> str:
    """The first line of an error, with paths as params have them."""
    return str(error).replace(f"{root}/", "").splitlines()[0]


def _check_place(root: Path) -> None:
    for signs, why in UNUSABLE.items():
        if found := re.search(signs, str(root)):
            raise ParamsError(f"{root}: {why}; move the checkout to a path without {found[0]}")


def _path_problems(params: Params, root: Path) -> Iterator[Problem]:
    for named in named_paths(asdict(params)):
        place = root / named.path
        if not place.exists():
            yield from _missing(named, root)
        elif output := _output_at(place, root):
            yield (
                named.key,
                f"{named.path}: overlaps with {output}, which stages write; copy it elsewhere",
            )
        elif named.key in FOLDERS and not place.is_dir():
            yield named.key, f"{named.path}: a file; expected a model folder in Hugging Face format"
        elif not named.key.startswith((*DATA, *FOLDERS)) and place.is_dir():
            yield named.key, f"{named.path}: a folder; expected a file"


def _missing(named: Named, root: Path) -> Iterator[Problem]:
    """A path that is not there, unless it may still come or be an id of the hub."""
    place, local = root / named.path, named.path.startswith((".", "/"))
    if named.key == "label.file" or (named.pinned and not local):
        return
    if place.with_name(f"{place.name}.dvc").is_file():
        yield named.key, f"{named.path}: not here; run `dvc pull {named.path}`"
    elif named.key in FOLDERS:
        yield named.key, f"{named.path}: no such model folder{nearest(place)}"
    elif named.key.startswith("prepare.sources"):
        hint = f"{nearest(place)}; a data set of the hub needs its revision"
        yield named.key, f"{named.path}: no such file or folder{hint}"
    else:
        yield named.key, f"{named.path}: no such file{nearest(place)}"


def _output_at(place: Path, root: Path) -> str | None:
    """The output of a stage that holds a path or lies in it."""
    found = place.resolve()
    for output in OUTPUTS:
        written = (root / output).resolve()
        if found.is_relative_to(written) or written.is_relative_to(found):
            return output
    return None
