"""Edits of params.yaml that keep its comments and its order: single keys, and the number of rounds.

A key is dotted, as in `ppo.kl_coef`. Values are checked by whoever loads the file afterwards.
"""

import copy
import dataclasses
import difflib
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.mergevalue import merge_attrib

from tasks.params.loading import Params, ParamsError, flatten, read_yaml, unknown_keys

SFT = "models/sft"


def edit_params(path: Path, values: Mapping[str, object], *, rounds: int | None = None) -> None:
    """Set values and the number of rounds; a file that has them already keeps its bytes.

    Args:
        path: the params file.
        values: dotted key -> value.
        rounds: keep the first ones, or add more that go on like the last one.

    Raises:
        ParamsError: a key is unknown; the message has the nearest one, and nothing is written.
    """
    if problems := [problem for key in values for problem in _problems(key)]:
        raise ParamsError("\n".join(problems))
    before = read_yaml(path)
    yaml = round_trip_yaml()
    edited = yaml.load(path.read_text(encoding="utf-8"))
    if rounds is not None:
        _set_rounds(edited, rounds)
    for key, value in values.items():
        set_value(edited, key.split("."), value)
    text = StringIO()
    yaml.dump(edited, text)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text.getvalue(), encoding="utf-8")
    if read_yaml(draft) == before:
        draft.unlink()
    else:
        draft.replace(path)


def set_value(values: Any, key: list[str], value: Any) -> None:
    """Set one value within a file that was loaded with its comments.

    What aliases (`*`) or merge keys (`<<`) share elsewhere keeps its value there.
    """
    root = values
    for part in key[:-1]:
        if not isinstance(values.get(part), CommentedMap):
            values[part] = CommentedMap()
        elif _references(root)[id(values[part])] > 1:
            values[part] = _own_copy(values[part])
        values = values[part]
    last = key[-1]
    if last in values:
        values[last] = value
    else:
        # Before the last key, which holds the empty line and the comment before the next section.
        values.insert(max(len(values) - 1, 0), last, value)


def _references(root: Any) -> Counter[int]:
    """How often each mapping and list within `root` is referred to, by its `id`."""
    counts: Counter[int] = Counter()
    pending = [root]
    while pending:
        node = pending.pop()
        is_map = isinstance(node, CommentedMap)
        merged = getattr(node, merge_attrib, ())
        for child in [*(node.values() if is_map else node), *merged]:
            if isinstance(child, CommentedMap | CommentedSeq):
                counts[id(child)] += 1
                if counts[id(child)] == 1:
                    pending.append(child)
    return counts


def _own_copy(shared: CommentedMap) -> CommentedMap:
    """A copy without the anchor, which stays where the others refer to."""
    copied = copy.deepcopy(shared)
    copied.yaml_set_anchor(None)
    return copied


def lost_parameters(stated: Mapping[str, Any], values: Mapping[str, object]) -> Iterator[str]:
    """What is wrong with values that are whole sections: parameters that they would take away.

    Args:
        stated: what the params file has.
        values: dotted key -> value, as for `edit_params`.
    """
    for key, value in values.items():
        section: Any = stated
        for part in key.split("."):
            section = section.get(part) if isinstance(section, Mapping) else None
        # What has keys of a person's own, such as `rounds`, is no section.
        is_section = isinstance(section, Mapping) and any(_problems(f"{key}.?"))
        if not is_section or not isinstance(value, Mapping):
            continue
        if lost := [name for name in section if name not in value]:
            yield (
                f"{key}: as a whole section it would lose {', '.join(lost)}; name single "
                f"parameters, as in {key}.{next(iter(value), lost[0])}"
            )


def round_trip_yaml() -> YAML:
    """Reads and writes YAML with its comments, its quotes and its numbers as they stand."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.representer.add_representer(
        type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return yaml


def _problems(key: str) -> Iterator[str]:
    nested: object = None
    for part in reversed(key.split(".")):
        nested = {part: nested}
    if not (found := list(unknown_keys(nested, Params, ""))):
        return
    known = _known_keys()
    name = key.rpartition(".")[2]
    near = [each for each in known if each.rpartition(".")[2] == name]
    near = near or difflib.get_close_matches(key, known, n=1)
    yield f"{key}: unknown key; did you mean {' or '.join(near)}?" if near else found[0]


def _known_keys() -> list[str]:
    sections = typing.get_type_hints(Params)
    defaults = {
        name: dataclasses.asdict(kind())
        for name, kind in sections.items()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type)
    }
    return [*flatten(defaults), "final"]


def _set_rounds(values: Any, number: int) -> None:
    """Keep the first `number` rounds, or add some that continue like the last one."""
    rounds = values["rounds"]
    names = list(rounds)
    trailing = _take_comment(rounds[names[-1]])
    for name in names[number:]:
        del rounds[name]
    while len(rounds) < number:
        last = list(rounds)[-1]
        key = _next_name(rounds)
        rounds[key] = CommentedMap(_following(rounds[last], last, anew=_starts_anew(rounds)))
    _put_comment(rounds[list(rounds)[-1]], trailing)
    values["final"] = list(rounds)[-1]


def _next_name(rounds: Mapping[str, object]) -> str:
    number = len(rounds) + 1
    while f"r{number}" in rounds:
        number += 1
    return f"r{number}"


def _starts_anew(rounds: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether PPO starts from SFT in every round, not from the round before."""
    return len(rounds) > 1 and list(rounds.values())[-1]["start"] == SFT


def _following(last: Mapping[str, str], name: str, *, anew: bool) -> dict[str, str]:
    policy = f"models/rounds/{name}/policy"
    return {
        **last,
        "policy": policy,
        "start": SFT if anew else policy,
        "reward_model": f"models/rounds/{name}/reward",
        "preferences": f"data/rounds/{name}/preferences",
    }


def _take_comment(entry: Any) -> Any:
    """The empty line and the comment that follow a round, which ruamel keeps with its last key."""
    return entry.ca.items.pop(list(entry)[-1], None)


def _put_comment(entry: Any, comment: Any) -> None:
    if comment is not None:
        entry.ca.items[list(entry)[-1]] = comment
