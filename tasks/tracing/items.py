"""The items that a file of data holds: judgments, preferences, demonstrations, prompts, documents.

Held-out and test prompts form no policy: nothing is trained on them, and no policy answers them
before it is measured.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from preferences.records import NOBODY, compact_json, prompt_text, text_hash
from tasks.tracing.contents import Contents
from tasks.tracing.records import Ran

Kind = Literal["judgment", "preference", "demonstration", "prompt", "document"]
EMBEDDED = "support desk"
"""Source of what `prepare` generates."""

PREPARED = "data/prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that somebody wrote or said, and that formed a model."""

    kind: Kind
    id: str
    """`judgment_id`, `pair_id`, `prompt_id`, or the hash of a demonstration's or document's
    text."""
    prompt_id: str | None = None
    """The prompt that it belongs to."""
    annotator: str | None = None
    """Who judged."""
    source: str
    """Kind of annotator, data set, or file that it came from."""
    use: str
    """The round whose reward model learnt from it (`r1 train`, `r1 heldout`, `r1 left out`), or
    the stage that reads it."""

    def to_row(self) -> dict[str, Any]:
        """The item without the fields that it does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Part:
    """A file, of one content, as one run of a stage read it; equal parts hold equal items."""

    kind: Kind
    reader: str
    """The stage, such as `validate@r1`."""
    files: tuple[tuple[str, str, str], ...]
    """Name of its role, path of the output or file, hash; the first one holds the items."""
    source: str = EMBEDDED
    """Where items without a source of their own come from."""


def parts_of(ran: Ran, prepared_by: Ran | None) -> Iterator[Part]:
    """What the run of a stage learnt from, or passed on to those that learn.

    Args:
        ran: the run.
        prepared_by: the run that wrote the `data/prepared` that it read, None if it read none.
    """
    section, _, key = ran.stage.partition("@")
    if section == "validate":
        outs = (("preferences", f"data/rounds/{key}/preferences"),)
        yield Part("judgment", ran.stage, _named(ran.deps, key) + _existing(ran.outs, outs))
    if PREPARED not in ran.deps or prepared_by is None:
        return
    files = prepared_by.params.get("prepare", {}).get("files") or {}
    read = (("prepared", PREPARED, ran.deps[PREPARED]),)

    def part(kind: Kind, name: str) -> Part:
        return Part(kind, ran.stage, read, files.get(name) or EMBEDDED)

    # A base model that was taken from elsewhere learnt nothing here.
    pretrained = section == "base" and not (ran.params.get("base") or {}).get("model")
    if pretrained:
        yield part("document", "corpus")
    if pretrained or section == "sft":
        yield part("demonstration", "demonstrations")
    if section in ("sample", "ppo"):
        yield part("prompt", "prompts")
    # Preferences that one starts with enter through the first round, whichever it is.
    if section == "validate" and f"{PREPARED}/preferences" in ran.deps:
        yield part("preference", "preferences")


def items_of(part: Part, contents: Contents) -> Iterator[Item]:
    """The items of a part, in the order of the file.

    Raises:
        ContentError: the file is not on this machine.
    """
    return _READERS[part.kind](part, contents)


def files_of(part: Part, contents: Contents) -> list[str]:
    """The hashes of the files of a part that hold its items, and the pairs that they are about.

    Raises:
        ContentError: the list of a folder's files is not on this machine.
    """
    if part.kind == "judgment":
        return [digest for role, _, digest in part.files if role != "preferences"]
    _, path, digest = part.files[0]
    listed = contents.files(path, digest)
    return [listed[name] for name in _NAMES[part.kind] if name in listed]


def demonstration_id(row: Mapping[str, Any]) -> str:
    """The id of a demonstration, from its content alone."""
    said = row["messages"] if "messages" in row else [row["prompt"], row["response"]]
    return text_hash(compact_json(said))


def _judgments(part: Part, contents: Contents) -> Iterator[Item]:
    files = {role: (path, digest) for role, path, digest in part.files}
    prompts = {row["pair_id"]: row["prompt_id"] for row in contents.rows(*files["comparisons"])}
    sides: dict[str, str] = {}
    if "preferences" in files:
        folder, digest = files["preferences"]
        listed = contents.files(folder, digest)
        for side in ("train", "heldout"):
            for row in contents.rows(f"{folder}/{side}.jsonl", listed[f"{side}.jsonl"]):
                sides[row["pair_id"]] = side
    key = part.reader.partition("@")[2]
    for row in contents.rows(*files["judgments"]):
        if row["kind"] == NOBODY:  # It stands where a judgment was withdrawn.
            continue
        yield Item(
            kind="judgment",
            id=row["judgment_id"],
            prompt_id=prompts.get(row["pair_id"]),
            annotator=row["annotator_id"],
            source=row["kind"],
            use=f"{key} {sides.get(row['pair_id'], 'left out')}",
        )


def _preferences(part: Part, contents: Contents) -> Iterator[Item]:
    for side in ("train", "heldout"):
        for row in _prepared(part, contents, f"preferences/{side}.jsonl"):
            yield Item(
                kind="preference",
                id=row["pair_id"],
                prompt_id=row["prompt_id"],
                source=row.get("source") or part.source,
                use=f"{part.reader.partition('@')[2]} {side}",
            )


def _demonstrations(part: Part, contents: Contents) -> Iterator[Item]:
    for row in _prepared(part, contents, "demonstrations.jsonl"):
        yield Item(
            kind="demonstration",
            id=demonstration_id(row),
            prompt_id=row.get("prompt_id"),
            source=part.source,
            use=part.reader,
        )


def _prompts(part: Part, contents: Contents) -> Iterator[Item]:
    for row in _prepared(part, contents, "prompts/train.jsonl"):
        yield Item(
            kind="prompt",
            id=row["prompt_id"],
            prompt_id=row["prompt_id"],
            source=part.source,
            use=part.reader,
        )


def _documents(part: Part, contents: Contents) -> Iterator[Item]:
    for row in _prepared(part, contents, "corpus.jsonl"):
        text = prompt_text(row["text"])
        yield Item(kind="document", id=text_hash(text), source=part.source, use=part.reader)


def _prepared(part: Part, contents: Contents, name: str) -> Iterator[dict[str, Any]]:
    _, path, digest = part.files[0]
    listed = contents.files(path, digest)
    if name in listed:
        yield from contents.rows(f"{path}/{name}", listed[name])


_READERS: dict[Kind, Callable[[Part, Contents], Iterator[Item]]] = {
    "judgment": _judgments,
    "preference": _preferences,
    "demonstration": _demonstrations,
    "prompt": _prompts,
    "document": _documents,
}


_NAMES: dict[Kind, tuple[str, ...]] = {
    "preference": ("preferences/train.jsonl", "preferences/heldout.jsonl"),
    "demonstration": ("demonstrations.jsonl",),
    "prompt": ("prompts/train.jsonl",),
    "document": ("corpus.jsonl",),
}
"""Kind -> its files below `data/prepared`."""


def _named(deps: Mapping[str, str], key: str) -> tuple[tuple[str, str, str], ...]:
    wanted = (
        ("judgments", f"data/rounds/{key}/judgments.jsonl"),
        ("comparisons", f"data/rounds/{key}/comparisons.jsonl"),
    )
    return _existing(deps, wanted)


def _existing(
    hashes: Mapping[str, str], wanted: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str, str], ...]:
    return tuple((role, path, hashes[path]) for role, path in wanted if path in hashes)
