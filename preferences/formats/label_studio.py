"""Label Studio's exports of the `<Pairwise>` template, one task with its annotations per row.

Left is `response_a`. A cancelled annotation is a skip; a `<Choices>` result may say `tie`, whatever
side was chosen before; a `<Rating>` called `strength` says how much better. Tasks that
`python -m feedback export` writes have the responses as `left` and `right`, and messages as JSON in
a text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from preferences.formats.sampling import check_votes
from preferences.formats.votes import FINISHED, VOTES, voted
from preferences.opening import USUAL_LIMITS, Limits
from preferences.records import Choice, Judgment, Row, Voted, composed, pair_id
from preferences.row_values import RowError
from preferences.schemas import Field, Schema, shown

LABEL_STUDIO = Schema(
    "Label Studio tasks",
    (Field(name="data", kind="object"), Field(name="annotations", kind="list")),
    unknown="leave out",
)
SIDES = {"a": "left", "b": "right"}
_NEITHER: tuple[Choice, ...] = ("tie", "both_bad")
_TASK = Schema(
    "Label Studio's data",
    tuple(field for field in VOTES.fields if field.name not in ("votes", "workers")),
    unknown="leave out",
)


def label_studio_from_row(
    row: Mapping[str, Any], where: str, limits: Limits = USUAL_LIMITS
) -> Voted:
    """The pair of a task with one judgment per annotator; saying the same again changes nothing.

    Raises:
        RowError: the task's data are not a pair, an annotation is not pairwise, or an annotator
            says two different things.
    """
    check_votes(len(row["annotations"]), limits)
    data = _TASK.without_null_keys(_with_sides(row["data"]))
    for problem in _TASK.problems(data):
        raise RowError(f"data: {problem}")
    cast: dict[str, Choice] = {}
    strengths: dict[str, int | None] = {}
    for number, entry in enumerate(row["annotations"], start=1):
        worker, choice, strength = _annotation(entry, number)
        strengths.setdefault(worker, strength)
        if (said := cast.setdefault(worker, choice)) != choice:
            raise RowError(
                f"annotation {number}: annotator {shown(worker)} says {choice}, and said {said} "
                "before; expected one answer of each"
            )
    answers = (data["response_a"], data["response_b"])
    item = voted(data, answers, list(cast.items()), where, order="AB")
    rated = (replace(vote, strength=strengths[vote.annotator_id]) for vote in item.judgments)
    return replace(item, judgments=tuple(rated))


def _with_sides(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task's data with the fields of the labelling page's export under our names."""
    if "left" not in data or "response_a" in data:
        return data
    sides = {"response_a": data["left"], "response_b": data.get("right")}
    # The note below a response says that it was cut.
    finished = {f"finished_{a}": not data.get(f"{side}_note") for a, side in SIDES.items()}
    prompt = _messages(data.get("prompt"), data.get("pair_id"), *sides.values())
    return {**data, **sides, **finished, "prompt": prompt}


def _messages(prompt: Any, wanted: Any, *responses: Any) -> Any:
    """The messages that a text stands for, if the pair's id is of these."""
    try:
        found = json.loads(prompt)
        return found if pair_id(found, *responses) == wanted else prompt
    except (TypeError, ValueError, RecursionError):
        return prompt


def _annotation(entry: Any, number: int) -> tuple[str, Choice, int | None]:
    """Annotator, choice and strength, as the labelling side reads them."""
    if not isinstance(entry, dict) or not isinstance(entry.get("result"), list):
        raise RowError(f'annotation {number}: expected an object with "result"')
    # A number, or an object with one or an address, depending on the export's settings.
    who = entry.get("completed_by")
    who = who.get("id", who.get("email")) if isinstance(who, dict) else who
    worker = f"annotator {number}" if who is None else composed(str(who))
    if entry.get("was_cancelled"):
        return worker, "skip", None
    results = [result for result in entry["result"] if isinstance(result, dict)]
    values = [value for result in results if isinstance(value := result.get("value"), dict)]
    neither = [value["choices"] for value in values if isinstance(value.get("choices"), list)]
    for choice in _NEITHER:
        if any(choice in choices for choices in neither):
            return worker, choice, None
    for value in values:
        if value.get("selected") in ("left", "right"):
            return worker, "a" if value["selected"] == "left" else "b", _strength(results)
    raise RowError(f"annotation {number}: no pairwise result (left, right, tie or both_bad)")


def _strength(results: Sequence[Mapping[str, Any]]) -> int | None:
    """What the rating of our labelling configuration says, if it was given."""
    for result in results:
        value = result.get("value")
        rating = value.get("rating") if isinstance(value, dict) else None
        if result.get("from_name") == "strength" and type(rating) is int and 1 <= rating <= 4:
            return rating
    return None


def label_studio_to_row(item: Voted) -> Row:
    """A task with its annotations."""
    comparison = item.comparison
    names = ("pair_id", "prompt_id", "prompt", "response_a", "response_b", *FINISHED, "round")
    return {
        "data": {name: getattr(comparison, name) for name in names},
        "annotations": [_to_annotation(judgment) for judgment in item.judgments],
    }


def _to_annotation(judgment: Judgment) -> Row:
    result = {"from_name": "pref", "to_name": "a,b", "type": "pairwise", "value": {}}
    if judgment.choice in ("a", "b"):
        result["value"] = {"selected": "left" if judgment.choice == "a" else "right"}
    else:
        result |= {"type": "choices", "value": {"choices": [judgment.choice]}}
    skipped = judgment.choice == "skip"
    return {
        "completed_by": judgment.annotator_id,
        "was_cancelled": skipped,
        "result": [] if skipped else [result],
    }
