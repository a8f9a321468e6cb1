"""`python -m tasks.lineage POLICY`: every judgment, demonstration and prompt that formed a policy.

And the way back: with `--annotator`, `--source`, `--prompt` or `--judgment` instead of a policy,
the models that these formed, of all branches and commits that are here. Follows the hashes in
dvc.lock, of any commit (`--rev`), and reads the files from DVC's cache, so nothing has to be
checked out. Prints counts by annotator and source; `--items` prints each item as a JSON object on a
line of its own. Exit codes: 0, or 2 where the question or the records are at fault.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from preferences.records import compact_json, composed
from preferences.schemas import printable
from tasks.tracing.ancestry import Ancestry, Model
from tasks.tracing.contents import ContentError
from tasks.tracing.items import Item
from tasks.tracing.records import RecordError
from tasks.workspace.git import GitError

BACK: dict[str, Callable[[Item, str], bool]] = {
    "annotator": lambda item, name: composed(item.annotator or "") == composed(name),
    "source": lambda item, name: item.source == name,
    "prompt": lambda item, prompt: item.prompt_id == prompt,
    "judgment": lambda item, name: item.kind == "judgment" and item.id == name,
}
"""Option of the way back -> whether an item is meant."""

REASONS = 3
"""So many say why models of old commits were left out; data of hundreds may be gone."""


def main(argv: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    given = _parser().parse_args(argv)
    asked = {name: value for name in BACK if (value := getattr(given, name)) is not None}
    if (given.policy is not None) + len(asked) != 1:
        sys.stderr.write(f"name one thing: a policy, or one of {', '.join(map(_flag, BACK))}\n")
        return 2
    try:
        ancestry = Ancestry(Path.cwd(), given.rev)
        if given.policy is not None:
            model = ancestry.model(given.policy)
            items = ancestry.items(model)
            lines = _rows(items) if given.items else _formed(model, items)
        else:
            ((name, value),) = asked.items()
            lines = _way_back(ancestry, name, value, given)
        for line in lines:
            sys.stdout.write(f"{line}\n")
    except (RecordError, ContentError, GitError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
    return 0


def counts(items: Iterable[Item]) -> dict[tuple[str, str, str], int]:
    """(kind, source, annotator) -> number of different items, in the order of appearance."""
    # An item is read by several stages: PPO is offered the prompts of every round again.
    seen = dict.fromkeys((i.kind, i.source, i.annotator or "", i.id) for i in items)
    return Counter((kind, source, annotator) for kind, source, annotator, _ in seen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.lineage", description=__doc__.partition("\n")[2]
    )
    parser.add_argument(
        "policy",
        nargs="?",
        help="a round (its policy), `sft`, `final`, a path below models/, or a DVC hash",
    )
    parser.add_argument("--annotator", metavar="NAME", help="models that this annotator formed")
    parser.add_argument(
        "--source", metavar="NAME", help="models that a kind of annotator, file or data set formed"
    )
    parser.add_argument("--prompt", metavar="ID", help="models that a prompt formed")
    parser.add_argument("--judgment", metavar="ID", help="models that a judgment formed")
    parser.add_argument("--rev", metavar="COMMIT", help="as of a commit, branch or tag, alone")
    parser.add_argument("--items", action="store_true", help="list every item, as JSON Lines")
    return parser


def _flag(name: str) -> str:
    return f"--{name}"


def _formed(model: Model, items: Iterable[Item]) -> Iterator[str]:
    found = counts(items)
    yield f"{model.path} (md5 {model.digest}) was formed by"
    if not found:
        yield "  nothing that is recorded here: it was taken as it is"
        return
    yield from _table(found)


def _way_back(
    ancestry: Ancestry, name: str, value: str, given: argparse.Namespace
) -> Iterator[str]:
    """The models that something formed: of one revision where one is given, else of all."""
    everywhere = given.rev is None
    models = ancestry.all_models() if everywhere else ancestry.models()
    formed, untraceable = ancestry.formed_by(models, lambda item: BACK[name](item, value))
    if untraceable and not everywhere:
        each = (f"{model.path} (md5 {model.digest}): {why}" for model, why in untraceable.items())
        raise RecordError("\n".join(each))
    # Of other branches, data of old runs may be gone; what is known is said all the same.
    sys.stderr.writelines(f"{line}\n" for line in _not_traced(untraceable))
    if given.items:
        yield from _each(formed)
    else:
        named = ancestry.records.named_in() if everywhere else {}
        yield from _back(f"{name} {value}", formed, named)


def _not_traced(untraceable: dict[Model, str]) -> Iterator[str]:
    """Why models were left out: the reasons that most have, each with one of its models."""
    by_reason: dict[str, list[Model]] = {}
    for model, why in untraceable.items():
        by_reason.setdefault(why, []).append(model)
    reasons = sorted(by_reason.items(), key=lambda reason: -len(reason[1]))
    for why, models in reasons[:REASONS]:
        others = f" and {len(models) - 1:,} more" if len(models) > 1 else ""
        yield f"not traced: {models[0].path} (md5 {models[0].digest}){others}: {why}"
    if left := sum(len(models) for _, models in reasons[REASONS:]):
        yield f"not traced, for other reasons: {left:,} more; --rev COMMIT names all of a commit"


def _each(formed: dict[Model, list[Item]]) -> Iterator[str]:
    for model, items in formed.items():
        yield from (compact_json({"model": model.path, **item.to_row()}) for item in items)


def _back(
    asked: str, formed: dict[Model, list[Item]], named: dict[str, list[str]]
) -> Iterator[str]:
    if not formed:
        yield f"{asked}: no model was formed by it"
    for model, items in formed.items():
        count = sum(counts(items).values())
        number = f"{count:,} item{'s' if count > 1 else ''}"
        where = f"; {', '.join(named[model.digest])}" if model.digest in named else ""
        yield f"{model.path} (md5 {model.digest}): {number}{where}"


def _rows(items: Iterable[Item]) -> Iterator[str]:
    return (compact_json(item.to_row()) for item in items)


def _table(found: dict[tuple[str, str, str], int]) -> Iterator[str]:
    head = ("what", "source", "annotator", "number")
    # Names come from the data, and nothing in them may steer the terminal.
    rows = [(*map(printable, key), f"{number:,}") for key, number in sorted(found.items())]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    for row in [head, *rows]:
        cells = [text.ljust(width) for text, width in zip(row[:3], widths, strict=False)]
        yield f"  {'  '.join(cells)}  {row[3].rjust(widths[3])}"


if __name__ == "__main__":
    sys.exit(main())
