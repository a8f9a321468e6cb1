"""Looks for it everywhere, changes nothing: what must go, what follows, what is out of reach."""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedback.store.database import Database, sqlite_file
from feedback.store.withdrawing import Held, held
from preferences.records import prompt_text
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS, Tombstone
from tasks.forgetting.consequences import containing, gone, holding, readers, stale
from tasks.forgetting.ledger import missing, salt_of
from tasks.forgetting.own_rows import editable
from tasks.forgetting.places import (
    Found,
    in_cache,
    in_outputs,
    in_own_files,
    in_work,
    lists_of,
    not_searched,
    real,
)
from tasks.forgetting.wanted import Wanted, is_judgment
from tasks.own_data.files import Named, named_paths
from tasks.params.loading import Params, ParamsError, load_params
from tasks.tracing.ancestry import Ancestry, Model
from tasks.tracing.contents import Contents
from tasks.tracing.records import Ran, RecordError, Records
from tasks.workspace.dvc_cache import md5
from tasks.workspace.withdrawn import WITHDRAWN, tombstones_in
from tasks.workspace.worktrees import STAGES_FOLDER, workspaces


@dataclass(frozen=True, slots=True)
class Again:
    """What the next run does in this checkout, or in the workspace of a variant or a run."""

    place: Path
    stages: tuple[str, ...]
    """What it makes anew: the result changes."""
    looking: tuple[str, ...]
    """Stages that read the withdrawals too, and end with the same bytes as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What forgetting would do."""

    wanted: Wanted
    files: tuple[Found, ...]
    """Removed, and rewritten where they are the user's own."""
    stores: tuple[tuple[str, Held], ...]
    """Labelling stores by path or address."""
    digests: frozenset[str]
    """Hashes of the files of outputs that have it, and of folders that list one of them."""
    tombstones: dict[str, list[Tombstone]]
    """File of withdrawals -> what is added to it."""
    again: tuple[Again, ...]
    """By place, the checkout first; those where nothing is to do are left out."""
    models: tuple[Model, ...]
    """That were formed by it, of all commits."""
    untraceable: tuple[Model, ...]
    by_hand: tuple[Path, ...]
    """Own files that have it and that people must edit."""
    not_searched: tuple[Path, ...]
    """Own files that are no text, so that only people can tell whether they have it."""

    @property
    def empty(self) -> bool:
        """Whether nothing has it, and nothing is to be added."""
        return not (self.files or self.stores or any(self.tombstones.values()) or self.by_hand)


@dataclass
class _Seen:
    """What the rows say that have it."""

    texts: set[Tombstone] = field(default_factory=set)
    judgments: set[Tombstone] = field(default_factory=set)
    prompts: set[str] = field(default_factory=set)
    pairs: set[str] = field(default_factory=set)


def make_plan(root: Path, wanted: Wanted) -> Plan:
    """Search this checkout, its variants, their labelling stores and DVC's cache.

    Raises:
        ParamsError: params.yaml is not valid.
        GitError: the history cannot be read.
        WorkspaceError: tombstones are damaged.
    """
    seen, salt = _Seen(), salt_of(root)
    places = [root, *workspaces(root)]
    runs = {place: _runs(place) for place in places}
    _search(root, runs, wanted, seen, salt)
    wanted = wanted.known(texts=frozenset(seen.prompts), pairs=frozenset(seen.pairs))
    # Once more: by now it is known under which texts and pairs else it may be found.
    files, by_hand = _search(root, runs, wanted, seen, salt)
    tombstones = {
        WITHDRAWN_TEXTS: missing(root, WITHDRAWN_TEXTS, seen.texts),
        WITHDRAWN_JUDGMENTS: missing(root, WITHDRAWN_JUDGMENTS, seen.judgments),
    }
    digests = {_digest(found) for found in files if found.place in ("cache", "output")}
    # A run takes the tombstones of the checkout along when it starts.
    known = {name: tombstones_in(root, name) | set(tombstones[name]) for name in WITHDRAWN}
    again = [
        _again(place, ran, digests, known)
        for place, ran in runs.items()
        # One stage works there, for a run that is elsewhere.
        if place.parent != root / STAGES_FOLDER
    ]
    models, untraceable = _models([place for place in places if runs[place]], digests)
    return Plan(
        wanted=wanted,
        files=tuple(files),
        stores=tuple(_stores(places, wanted)),
        digests=frozenset(digests | lists_of(root, digests)),
        tombstones=tombstones,
        again=tuple(one for one in again if one.stages or one.looking),
        models=tuple(models),
        untraceable=tuple(untraceable),
        by_hand=tuple(dict.fromkeys(by_hand)),
        not_searched=tuple(_not_searched(places, by_hand)),
    )


def _again(
    place: Path, runs: Sequence[Ran], digests: set[str], known: Mapping[str, Set[Tombstone]]
) -> Again:
    contents = Contents(place)
    changed = [name for name, wanted in known.items() if not wanted <= tombstones_in(place, name)]
    looking = readers(runs, changed)
    stages = stale(runs, holding(runs, contents, digests) | gone(runs, contents))
    return Again(place, tuple(stages), tuple(one for one in looking if one not in stages))


def _search(
    root: Path, runs: Mapping[Path, Sequence[Ran]], wanted: Wanted, seen: _Seen, salt: str
) -> tuple[list[Found], list[Path]]:
    """Files that have it, and own files that people must edit; notes what their rows say."""

    def see(row: dict[str, Any]) -> None:
        judged = is_judgment(row)
        # What follows from judgments goes with them, and needs no tombstone of its own.
        if judged or not (wanted.by_people and row.get("pair_id") in wanted.pairs):
            # Of people `label` alone leaves something out.
            side = seen.judgments if judged or wanted.kind == "annotator" else seen.texts
            side.update(wanted.tombstones(row, salt))
        seen.pairs.update(wanted.pairs_of(row))
        if row.get("prompt_id") == wanted.value and "prompt" in row:
            seen.prompts.add(prompt_text(row["prompt"]))

    files = in_cache(root, wanted, see)
    by_hand = []
    for place, ran in runs.items():
        files += in_outputs(place, list(ran), wanted, see) + in_work(place, wanted)
        named = _named(place)
        own = in_own_files(place, [one.path for one in named], wanted, see)
        pinned = [real(place / one.path) for one in named if one.pinned]
        mine = [one for one in own if editable(one.path) and one.path not in pinned]
        files += mine
        by_hand += [one.path for one in own if one not in mine]
        if wanted.kind == "source" and wanted.value in [one.path for one in named]:
            by_hand.append(real(place / wanted.value))
            seen.texts.update(wanted.tombstones(None, salt))
    # These are known before anything has it, and keep it away from the first time on.
    if wanted.kind in ("annotator", "prompt"):
        side = seen.judgments if wanted.kind == "annotator" else seen.texts
        side.update(wanted.tombstones(None, salt))
    unique = {found.path.absolute(): found for found in files}
    return list(unique.values()), by_hand


def _not_searched(places: Sequence[Path], by_hand: Sequence[Path]) -> list[Path]:
    """Own files of all places, without those that people must edit anyway."""
    paths = [one for p in places for one in not_searched(p, [named.path for named in _named(p)])]
    return [path for path in dict.fromkeys(paths) if path not in by_hand]


def _models(places: Sequence[Path], digests: set[str]) -> tuple[list[Model], list[Model]]:
    """Of the models of all commits, and of the variants as they are: found, and untraceable."""
    found: dict[str, Model] = {}
    unclear: dict[str, Model] = {}
    for number, place in enumerate(places):
        ancestry = Ancestry(place)
        # The variants share the history.
        known = ancestry.records.all_models() if number == 0 else {}
        models = [Model(path, digest) for digest, path in known.items()]
        having, untraceable = containing(ancestry, models or ancestry.models(), digests)
        found |= {model.digest: model for model in having}
        unclear |= {model.digest: model for model in untraceable}
    return list(found.values()), [one for one in unclear.values() if one.digest not in found]


def _runs(place: Path) -> list[Ran]:
    try:
        return Records(place, Contents(place)).now
    except RecordError:
        return []


def _named(place: Path) -> list[Named]:
    """What its params.yaml names, also a file of judgments that no stage reads now."""
    values = asdict(_params(place))
    before = values | {"label": {**values["label"], "annotators": "file"}}
    return list(dict.fromkeys([*named_paths(values), *named_paths(before)]))


def _params(place: Path) -> Params:
    try:
        return load_params(place / "params.yaml")
    except ParamsError as error:
        if place.parent.name not in ("variants", "runs"):
            raise
        # The file is made from others: by hand it would not stay mended.
        raise ParamsError(
            f"{error}\nnothing was searched: run {place.name} again, or remove what it made "
            f"(git worktree remove --force {place})"
        ) from None


def _digest(found: Found) -> str:
    if found.place == "cache":
        return found.path.parent.name + found.path.name
    return md5(found.path)


def _stores(places: Sequence[Path], wanted: Wanted) -> list[tuple[str, Held]]:
    urls = dict.fromkeys(_store_url(place) for place in places)
    found = []
    for url in urls:
        file = sqlite_file(url)
        if file is not None and not file.exists():
            continue
        database = Database(url)
        try:
            with database.reading() as connection:
                what = held(connection, person=wanted.person, said=wanted.said)
        finally:
            database.close()
        if what.counts:
            found.append((url, what))
    return found


def _store_url(place: Path) -> str:
    url = os.environ.get("RLHF_FEEDBACK_STORE") or _params(place).label.store
    return url if "://" in url else str(place / url)
