"""Reads a mix of sources as preferences: strictly, split by prompt, weighted."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preferences.formats.files import is_data, read_records
from preferences.formats.layouts import Layout
from preferences.formats.maps import layout_of
from preferences.formats.reading import Item, Source, detect_row, open_source
from preferences.formats.writing import Unsettled
from preferences.opening import USUAL_LIMITS, open_regular, unreadable
from preferences.reader import MalformedDataError, NumberedRow, Problems
from preferences.records import Preference, Row, Voted
from preferences.row_values import RowError, check_value, without_nan
from preferences.source_params import SourceParams
from preferences.splitting import split_of
from preferences.withdrawals import Withdrawals

_UNNAMED = ("", "import")
"""The source of rows that name none, and of votes that do not say who has cast them."""

_SPLIT = re.compile(r"(?<![a-z])(train|test|dev|eval|val)(?:ing|id|idation|uation)?(?![a-z])", re.I)
"""What the name of a file says of its split, as `datasets` reads it."""

_OTHER_SPLIT = "; name one by split (prepare.sources) or --split, or name its own folder or file"
"""What to do where a folder has splits, and none of the name."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What one source yielded."""

    source: SourceParams
    rows: tuple[Preference, ...]
    """Ties included: `validate.ties` decides about those of all sources alike."""
    skipped: int
    alone: int
    left: int
    """Pairs left out of prompts with very many."""
    malformed: tuple[str, ...]
    """Rows set aside, each with its first problem."""

    @property
    def ties(self) -> int:
        """Number of rows in which neither response is better."""
        return sum(row.is_tie for row in self.rows)

    def to_row(self) -> Row:
        """Counts of what became of its pairs."""
        return {
            "path": self.source.path,
            "revision": self.source.revision,
            "weight": self.source.weight,
            "pairs": len(self.rows) - self.ties,
            "ties": self.ties,
            "skipped": self.skipped,
            "without_opponent": self.alone,
            "left_out": self.left,
            "malformed": list(self.malformed),
        }


def gather(
    sources: Sequence[SourceParams],
    *,
    heldout_fraction: float,
    withdrawn: Withdrawals | None = None,
) -> list[Gathered]:
    """Reads all sources; our own format keeps its split, others are split by prompt.

    Votes that were `withdrawn` do not count. A pair that is left without any is skipped.

    Raises:
        MalformedDataError: a source is missing, damaged, or does not match its revision.
    """
    return [_gathered(source, heldout_fraction, withdrawn) for source in sources]


def opened(params: SourceParams) -> Source | None:
    """A source that lies here as a file or folder; None for one of the hub.

    Raises:
        MalformedDataError: it is not what its revision says, cannot be loaded, or its format cannot
            be detected.
    """
    path = Path(params.path)
    if not (path.is_file() or _holds_files(path)):
        _check_kind(path)
        if not path.is_dir():
            return None
        _check_revision(path, params)
        return _hub_source(params)
    _check_revision(path, params)
    return open_source(
        path, params.format, layout=_layout(params), skip_malformed=params.skip_malformed
    )


def rows_at(path: Path, problems: Problems) -> Iterator[NumberedRow]:
    """The rows of a file, a folder of files, or a data set that was saved; records problems.

    Raises:
        MalformedDataError: a file has an unknown suffix, or a saved data set is damaged.
    """
    if path.is_dir() and not _holds_files(path):
        yield from _hub_rows(SourceParams(path=str(path)))
    else:
        yield from read_records(path, problems)


def _layout(params: SourceParams) -> Layout | None:
    return layout_of(params.map) if params.map else None


def _check_kind(path: Path) -> None:
    """Refuses what is there but neither file nor folder."""
    if path.is_dir() or not (path.is_symlink() or path.exists()):
        return
    try:
        open_regular(path).close()
    except OSError as error:
        raise MalformedDataError([f"{path}: {unreadable(error)}"], 1) from None


def _gathered(
    params: SourceParams, heldout_fraction: float, withdrawn: Withdrawals | None
) -> Gathered:
    source = opened(params) or _elsewhere(params)
    unsettled = Unsettled()
    rows = []
    items = _without(source, withdrawn) if withdrawn else source
    for sourced in unsettled.settle(items, keep_ties=True):
        row = sourced.preference
        side = split_of(row.prompt, heldout_fraction=heldout_fraction)
        rows.append(
            replace(
                row,
                weight=row.weight * params.weight,
                source=params.path if row.source in _UNNAMED else row.source,
                split=row.split if source.format == "preferences" else side,
            )
        )
    if Path(params.path).is_file():
        _check_revision(Path(params.path), params)  # It may have changed since it was hashed.
    return Gathered(
        params,
        tuple(rows),
        skipped=unsettled.skipped,
        alone=source.alone,
        left=source.left,
        malformed=tuple(source.aside),
    )


def _without(items: Iterable[Item], withdrawn: Withdrawals) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Voted):
            yield replace(item, judgments=tuple(withdrawn.kept_judgments(item.judgments)))
        else:
            yield item


def _elsewhere(params: SourceParams) -> Source:
    path = Path(params.path)
    if path.with_name(f"{path.name}.dvc").is_file():
        raise MalformedDataError([f"{path}: not present; run `dvc pull {path}`"], 1)
    if params.revision is None or params.path.startswith((".", "/")):
        hint = "no such file or folder; a Hub data set needs a revision"
        raise MalformedDataError([f"{path}: {hint}"], 1)
    return _hub_source(params)


def _holds_files(folder: Path) -> bool:
    """Whether all files of the folder are the data.

    In Hugging Face layout they are in subfolders, or called after the splits that they belong to.
    """
    if not folder.is_dir() or _is_saved(folder):
        return False
    names = [file.name for file in folder.iterdir() if is_data(file)]
    return bool(names) and not _are_splits(names)


def _are_splits(names: Sequence[str]) -> bool:
    """Whether all files are called after splits, and not all after one."""
    found = [_SPLIT.search(name) for name in names]
    return all(found) and len({each[1].lower() for each in found if each}) > 1


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` of `datasets` has written the folder: a data set, or its splits."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _check_revision(path: Path, params: SourceParams) -> None:
    if params.revision is None:
        return
    if not path.is_file():
        raise MalformedDataError([f"{path}: a folder cannot be pinned by a revision"], 1)
    with open_regular(path) as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if not found.startswith(params.revision):
        short = found[: len(params.revision)]
        raise MalformedDataError([f"{path}: sha256 is {short}, expected {params.revision}"], 1)


def _hub_source(params: SourceParams) -> Source:
    layout = _layout(params)
    name = layout.format if layout else params.format
    return Source(
        Path(params.path),
        name or detect_row(params.path, next(_hub_rows(params), None)),
        rows=lambda: _hub_rows(params),
        layout=layout,
        skip_malformed=params.skip_malformed,
    )


def _hub_rows(params: SourceParams) -> Iterator[NumberedRow]:
    """The rows of a data set in Hugging Face layout, checked like all other rows."""
    table = _hub_table(params)
    layout = _layout(params)
    problems = Problems(layout.limits(USUAL_LIMITS) if layout else USUAL_LIMITS)
    for number, row in enumerate(table, start=1):
        where = f"{params.path} {params.split} row {number}"
        if problems.limits.nan_is_null:
            row = without_nan(row)
        try:
            check_value(row, problems.limits)
        except RowError as error:
            problems.add(where, str(error))
        else:
            yield NumberedRow(where, row)
    problems.check()


def _hub_table(params: SourceParams) -> Any:
    """A data set, loaded by `datasets`.

    Raises:
        MalformedDataError: there is none, or it is damaged.
    """
    # Importing takes two seconds, needed only for Hub data sets.
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    local = Path(params.path).is_dir()
    try:
        if _is_saved(Path(params.path)):
            return _saved_split(datasets.load_from_disk(params.path), params.split)
        return datasets.load_dataset(
            params.path, revision=None if local else params.revision, split=params.split
        )
    except IndexError:  # Where no row was saved, the library looks for the first file of none.
        raise MalformedDataError([f"{params.path}: holds no row"], 1) from None
    except datasets.data_files.EmptyDatasetError:
        raise MalformedDataError([f"{params.path}: no data file in this folder"], 1) from None
    # A RuntimeError is a script in the folder, which the library no longer runs.
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        hint = _OTHER_SPLIT if "no split" in reason or "Unknown split" in reason else ""
        raise MalformedDataError([f"{params.path}: cannot be loaded ({reason}){hint}"], 1) from None


def _saved_split(saved: Any, name: str) -> Any:
    """A data set that was saved by itself, or the split of that name.

    Raises:
        ValueError: there are splits, and none is called so.
    """
    if not isinstance(saved, dict):
        return saved
    if name not in saved:
        raise ValueError(f"no split {name!r}, expected one of {', '.join(saved)}")
    return saved[name]
