"""Label Studio: exports tasks and imports results, with a matching labelling configuration.

Label Studio shows sides in the given order, so they are shuffled here, by the content of the pair.
On import, the task's texts tell which response was on the left.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedback.judgments import LONGEST_MS, Pair, decoded, text_of
from preferences.records import Choice, Judgment, JudgmentError, composed, pair_id, text_hash

CONFIG = """<View>
  <Header value="Which response is better?"/>
  <Text name="prompt" value="$prompt"/>
  <Pairwise name="pref" toName="a,b"/>
  <Text name="a" value="$left"/>
  <Text name="a_note" value="$left_note"/>
  <Text name="b" value="$right"/>
  <Text name="b_note" value="$right_note"/>
  <Choices name="neither" toName="prompt" choice="single" showInline="true">
    <Choice value="tie"/>
    <Choice value="both_bad"/>
  </Choices>
  <Rating name="strength" toName="prompt" maxRating="4"/>
</View>
"""
"""The labelling configuration; the names a and b in it mean sides, not responses."""


CUT = "The response was cut here, at the length limit."
"""What is shown below a response that did not end by itself."""

_SIDES: dict[str, Choice] = {"left": "a", "right": "b"}


def to_tasks(pairs: Sequence[Pair], judgments: Sequence[Judgment]) -> list[dict[str, Any]]:
    """One task per pair, with existing judgments as annotations."""
    given: dict[str, list[Judgment]] = {pair.pair_id: [] for pair in pairs}
    for judgment in judgments:
        given[judgment.pair_id].append(judgment)
    return [_task(pair, given[pair.pair_id]) for pair in pairs]


def _swapped(pair: Pair) -> bool:
    """Pseudo-random but the same in every export: a bit of the id, which ignores sides."""
    first_is_a = pair.response_a <= pair.response_b
    return (int(pair.pair_id, 16) % 2 == 0) != first_is_a


def _task(pair: Pair, judgments: Sequence[Judgment]) -> dict[str, Any]:
    sides = [(pair.response_a, pair.finished_a), (pair.response_b, pair.finished_b)]
    swapped = _swapped(pair)
    if swapped:
        sides.reverse()
    (left, left_finished), (right, right_finished) = sides
    prompt = (
        pair.prompt if isinstance(pair.prompt, str) else json.dumps(pair.prompt, ensure_ascii=False)
    )
    data = {"prompt": prompt, "left": left, "right": right}
    data |= {"left_note": "" if left_finished else CUT, "right_note": "" if right_finished else CUT}
    data |= {"pair_id": pair.pair_id, "round": pair.round}
    return {"data": data, "annotations": [_annotation(one, swapped) for one in judgments]}


def _annotation(judgment: Judgment, swapped: bool) -> dict[str, Any]:
    result: list[dict[str, Any]] = []
    if judgment.choice in ("a", "b"):
        side = "left" if (judgment.choice == "a") != swapped else "right"
        result.append(_result("pref", "a,b", "pairwise", {"selected": side}))
    elif judgment.choice != "skip":
        result.append(_result("neither", "prompt", "choices", {"choices": [judgment.choice]}))
    if judgment.strength is not None:
        result.append(_result("strength", "prompt", "rating", {"rating": judgment.strength}))
    return {
        "completed_by": {"email": judgment.annotator_id},
        "was_cancelled": judgment.choice == "skip",
        "ground_truth": False,
        "lead_time": None if judgment.latency_ms is None else judgment.latency_ms / 1000,
        "result": result,
    }


def _result(name: str, to: str, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"from_name": name, "to_name": to, "type": kind, "value": value}


def is_export(path: Path) -> bool:
    """Whether the file begins with a list, as Label Studio's exports do, and not with `{`.

    Raises:
        JudgmentError: the file does not exist, or is none.
    """
    return text_of(path).lstrip(" \t\r\n").startswith("[")


def read_export(path: Path, round_key: str) -> list[Judgment]:
    """Judgments from a file that Label Studio exported as "JSON".

    Raises:
        JudgmentError: the file is missing or not such an export; names file and task.
    """
    tasks = decoded(text_of(path), path)
    try:
        return from_tasks(tasks, round_key)
    except JudgmentError as error:
        raise JudgmentError(f"{path}: {error}") from error
    except UnicodeEncodeError as error:
        what = "contains half a surrogate pair, expected valid text"
        raise JudgmentError(f"{path}: {what}") from error


def from_tasks(tasks: object, round_key: str) -> list[Judgment]:
    """Judgments from an export in Label Studio's JSON form; empty annotations are ignored.

    They belong to the round that the task names, or else to `round_key`.

    Raises:
        JudgmentError: not such an export, a task without the texts that we exported, or annotations
            of which none says which response is better.
    """
    if not isinstance(tasks, list):
        raise JudgmentError(f"Label Studio: {type(tasks).__name__}, expected a list of tasks")
    judgments: list[Judgment] = []
    unread: set[str] = set()
    for number, task in enumerate(tasks, start=1):
        where = f"task {number}"
        pair = _pair(where, task, round_key)
        for annotation in _list(where, "annotations", task.get("annotations")):
            judgment = _judgment(where, pair, annotation)
            if judgment is not None:
                judgments.append(judgment)
            else:
                unread |= {str(one.get("from_name")) for one in annotation.get("result") or ()}
    if unread and not judgments:
        raise JudgmentError(
            f"no annotation says which response is better: found {', '.join(sorted(unread))}, "
            "expected a pairwise result, or the choice tie or both_bad"
        )
    return judgments


def _list(where: str, name: str, value: object) -> list[Mapping[str, Any]]:
    """A list of objects; null, Label Studio's empty value, counts as an empty list."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise JudgmentError(f"{where}: {name} is {value!r}, expected a list of objects")
    return value


def _pair(where: str, task: object, round_key: str) -> Pair:
    data = task.get("data") if isinstance(task, dict) else None
    if not isinstance(data, dict):
        raise JudgmentError(f"{where} has no data; expected Label Studio's export form JSON")
    left, right = "left", "right"
    if "left" not in data and "response_a" in data:  # as `python -m preferences convert` writes it
        left, right = "response_a", "response_b"
        if isinstance(data.get("prompt"), list):
            data = data | {"prompt": json.dumps(data["prompt"])}
    for name in ("prompt", left, right):
        if not isinstance(data.get(name), str):
            raise JudgmentError(f"{where}: data.{name} is {data.get(name)!r}, expected a text")
    prompts = [data["prompt"]]
    if data["prompt"].startswith("["):
        prompts.append(_messages(data["prompt"]))
    ids = [pair_id(prompt, data[left], data[right]) for prompt in prompts]
    wanted = data.get("pair_id", ids[0])
    if wanted not in ids:
        raise JudgmentError(f"{where}: the texts do not match pair {wanted!r}")
    return Pair(
        pair_id=wanted,
        round=str(data.get("round") or round_key),
        prompt=prompts[ids.index(wanted)],
        response_a=data[left],
        response_b=data[right],
    )


def _messages(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # A text prompt that only looks like messages.
        return text


def _judgment(where: str, pair: Pair, annotation: Mapping[str, Any]) -> Judgment | None:
    choice, strength = _answer(where, annotation)
    if choice is None:
        return None
    seconds = annotation.get("lead_time")
    timed = isinstance(seconds, int | float) and 0 <= 1000 * seconds <= LONGEST_MS
    if seconds is not None and not timed:
        raise JudgmentError(f"{where}: lead_time is {seconds!r}, expected seconds, 0 or more")
    return Judgment.of(
        pair,
        annotator_id=_name(annotation.get("completed_by")),
        kind="import",
        annotator_version="label-studio",
        choice=choice,
        strength=strength if choice in ("a", "b") else None,
        shown_order="AB",
        answer_a=text_hash(pair.response_a),
        latency_ms=None if seconds is None else round(1000 * seconds),
    )


def _answer(where: str, annotation: Mapping[str, Any]) -> tuple[Choice | None, int | None]:
    if annotation.get("was_cancelled"):
        return "skip", None
    values = {
        str(one.get("from_name")): value
        for one in _list(where, "result", annotation.get("result"))
        if isinstance(value := one.get("value"), dict)
    }
    # Others name their controls as they like. Where ours are, they count.
    ours = [values[name] for name in ("pref", "neither") if name in values]
    said = ours or list(values.values())
    for choice in ("tie", "both_bad"):
        if any(value.get("choices") == [choice] for value in said):
            return choice, None
    found = [side for side in _SIDES if any(value.get("selected") == side for value in said)]
    if len(found) > 1:
        raise JudgmentError(f"{where}: left and right are both selected, expected one of them")
    strength = values.get("strength", {}).get("rating")
    rated = type(strength) is int and 1 <= strength <= 4
    return _SIDES[found[0]] if found else None, strength if rated else None


def _name(completed_by: object) -> str:
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    if isinstance(completed_by, str):
        return composed(completed_by)
    return "label-studio" if completed_by is None else f"label-studio-{completed_by}"
