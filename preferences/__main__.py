"""`python -m preferences check PATH` and `python -m preferences convert IN OUT --to FORMAT`.

Exit codes of check: 0 passed, 1 blocked, 2 malformed; of convert: 0 done, 2 malformed. Both take
other people's columns with --map and refuse data that need more than --max-memory.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from preferences.allowing import load_allowed
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.maps import layout_of
from preferences.formats.omissions import Omissions, columns_not_read
from preferences.formats.reading import FORMATS, Source, open_source, read_prompts
from preferences.formats.writing import OUT_FORMATS, check_name, write_items
from preferences.intake import inspect
from preferences.memory import memory_capped
from preferences.reader import MAX_ERRORS_SHOWN, MalformedDataError
from preferences.records import JudgmentMismatchError
from preferences.report import DOCS, FILES
from preferences.schemas import printable
from preferences.settling import Settled
from preferences.source_params import SourceParams
from preferences.sources import opened
from preferences.strictness import add_options, params_of
from preferences.tokens import TokenLimit

_MOST_GIB = 1_000_000
_MAX_TOKENS = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one of the two commands and returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        with memory_capped(options.max_memory):
            return _check(options) if options.command == "check" else _convert(options)
    except (MalformedDataError, JudgmentMismatchError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(printable(f"{error.filename}: {error.strerror}") + "\n")
        return 2
    except MemoryError:
        needed = f"needs more than {options.max_memory:g} GiB of memory (--max-memory)"
        sys.stderr.write(printable(f"{options.path}: {needed}") + "\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m preferences", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="validate any file as the validate stage does")
    check.add_argument("path", type=Path, help="a file, or a folder of data")
    _add_reading(check)
    check.add_argument(
        "--report", type=Path, metavar="DIR", help="folder for the reports and the cleaned data"
    )
    check.add_argument(
        "--against",
        type=Path,
        metavar="HELDOUT",
        help="file of prompts that must not be trained on",
    )
    check.add_argument("--allow", type=Path, metavar="FILE", help="allow-list of exceptions")
    check.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="model folder whose tokenizer counts tokens"
    )
    check.add_argument(
        "--max-tokens",
        type=_tokens,
        help=f"token limit per prompt and response (default {_MAX_TOKENS}); needs --tokenizer",
    )
    add_options(check)
    convert = commands.add_parser("convert", help="convert a file to another format")
    convert.add_argument("path", type=Path, metavar="IN")
    convert.add_argument("target", type=Path, metavar="OUT")
    convert.add_argument("--to", choices=OUT_FORMATS, required=True)
    _add_reading(convert)
    return parser


def _add_reading(command: argparse.ArgumentParser) -> None:
    """The options about how data are read."""
    form = command.add_mutually_exclusive_group()
    form.add_argument("--format", choices=FORMATS, help="default: detected from the columns")
    form.add_argument(
        "--map",
        metavar="LAYOUT",
        help=f"field=column,... for other columns, or one of {', '.join(KNOWN_LAYOUTS)}",
    )
    command.add_argument(
        "--split",
        default="train",
        help="of a folder in Hugging Face layout, or that save_to_disk wrote (default train)",
    )
    command.add_argument(
        "--skip-malformed",
        type=_count,
        default=0,
        metavar="N",
        help="set up to N malformed rows aside and list them (default 0)",
    )
    command.add_argument(
        "--max-memory",
        type=_gibibytes,
        default=4,
        metavar="GIB",
        help="refuse data that need more memory (default 4)",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 0 on")
    return int(text)


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number from 1 on")
    return int(text)


def _gibibytes(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= _MOST_GIB:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}, expected above 0 and at most {_MOST_GIB:,}")


def _opened(options: argparse.Namespace) -> Source:
    """The data that the options name."""
    try:
        layout = layout_of(options.map) if options.map else None
    except ValueError as error:
        raise MalformedDataError([f"--map: {error}"], 1) from None
    source = SourceParams(
        path=str(options.path),
        split=options.split,
        format=options.format,
        map=options.map,
        skip_malformed=options.skip_malformed,
    )
    return opened(source) or open_source(
        options.path, options.format, layout=layout, skip_malformed=options.skip_malformed
    )


def _reading_notes(source: Source) -> list[str]:
    """What was left out while reading, one line each."""
    notes = [f"pairs left out of prompts with very many: {source.left:,}"] if source.left else []
    if source.aside:
        notes.append(f"malformed rows set aside: {len(source.aside):,}")
        notes += [f"  {row}" for row in source.aside[:MAX_ERRORS_SHOWN]]
    return notes


def _check_places(options: argparse.Namespace) -> None:
    """Refuses a report folder that cannot be written or would overwrite an input."""
    report = _resolved(options.report)
    targets = [report / name for name in FILES]
    for read in filter(None, (options.path, options.against, options.allow)):
        place = _resolved(read)
        if place == report or any(target in (place, *place.parents) for target in targets):
            problem = f"the report would overwrite {read}; choose another folder"
            raise MalformedDataError([f"{options.report}: {problem}"], 1)
    if _resolved(options.path) in report.parents and options.path.is_dir():
        problem = f"lies in {options.path}, which is read; choose another folder"
        raise MalformedDataError([f"{options.report}: {problem}"], 1)
    for target in targets:
        known = target.name == DOCS and (target / "index.html").is_file()
        if target.is_dir() and not target.is_symlink() and not known:
            problem = "is a folder that no report has written; choose another folder"
            raise MalformedDataError([f"{target}: {problem}"], 1)
    there = next(place for place in (report, *report.parents) if place.exists())
    if not there.is_dir():
        raise MalformedDataError([f"{options.report}: {there} is a file, expected a folder"], 1)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:
        raise MalformedDataError([f"{path}: is a link that leads to itself"], 1) from None


def _token_limit(options: argparse.Namespace) -> TokenLimit | None:
    if options.tokenizer:
        return TokenLimit(options.tokenizer, options.max_tokens or _MAX_TOKENS)
    if options.max_tokens:
        raise MalformedDataError(["--max-tokens: needs --tokenizer, which counts them"], 1)
    return None


def _check(options: argparse.Namespace) -> int:
    params = params_of(options)
    if options.report:
        _check_places(options)
    source = _opened(options)
    prompts = read_prompts(options.against, source.layout) if options.against else []
    allowed = load_allowed(options.allow) if options.allow else frozenset()
    tokens = _token_limit(options)
    rows = Settled(source, params.heldout_fraction, keep_ties=params.ties == "half")
    measured = inspect(rows, prompts, params, tokens)
    # Importing Great Expectations takes three seconds; report damaged data first.
    from preferences.checking import check_measured, lines_of  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as scratch:
        checked = check_measured(
            rows,
            measured,
            allowed=allowed,
            report_dir=options.report or Path(scratch) / "report",
            params=params,
        )
    verdict = checked.verdict
    counts = verdict.counts
    lines = [f"{options.path}: format {source.format}, {counts.rows_in:,} pairs"]
    if source.left_out:
        lines.append(f"columns not read: {', '.join(map(ascii, sorted(source.left_out)))}")
    if source.alone:
        lines.append(f"completions without a counterpart: {source.alone:,}")
    lines += _reading_notes(source)
    if checked.without_pair:
        of = f"{checked.without_pair:,} of {len(allowed):,} entries"
        lines.append(f"allow-list: {of} match no pair")
    lines += [
        f"  {finding.rule:<18} {finding.severity:<10} {len(finding.rows):>9,}"
        for finding in verdict.findings
    ]
    lines += [
        f"  {number.name:<18} {number.bound.severity:<10} {number.value:>9.3f}"
        f"{'' if number.kept else '  beyond ' + format(number.bound.limit, 'g')}"
        for number in verdict.numbers
    ]
    lines.append(
        f"passed {counts.train:,} train + {counts.heldout:,} held out, set aside "
        f"{counts.quarantined:,}, ties {counts.ties:,}, skipped {counts.skipped:,}"
    )
    lines += lines_of(checked.statistics)
    lines += [f"blocked: {reason}" for reason in verdict.reasons] or ["verdict: passed"]
    sys.stdout.write("\n".join(map(printable, lines)) + "\n")
    return 0 if verdict.passed else 1


def _check_target(options: argparse.Namespace) -> None:
    """Refuses to write over the input, or into its folder, whose files are all read."""
    target, read = options.target, _resolved(options.path)
    names = ("comparisons.jsonl", "judgments.jsonl") if options.to == "judgments" else ()
    for written in [target / name for name in names] or [target]:
        place = _resolved(written.parent) / written.name
        if read in (place, _resolved(written)):
            what = "would overwrite"
        elif read in place.parents and read.is_dir():
            what = "lies in"
        else:
            continue
        problem = f"{what} {options.path}, which is read; choose another place"
        raise MalformedDataError([f"{target}: {problem}"], 1)


def _convert(options: argparse.Namespace) -> int:
    check_name(options.target, options.to)
    _check_target(options)
    source = _opened(options)
    # Damage may show only at the end of a file, and nothing may be written before: read it twice.
    omissions = Omissions(options.to)
    pairs = sum(1 for _ in omissions.watch(source))
    unsettled = write_items(options.target, source, options.to)
    lost = (
        ("ties", unsettled.ties),
        ("skipped", unsettled.skipped),
        ("completions without a counterpart", source.alone),
        ("pairs of prompts with very many", source.left),
    )
    notes = [f"{name} left out: {count:,}" for name, count in lost if count]
    unread = columns_not_read(source)
    notes += [f"columns not read: {', '.join(map(ascii, sorted(unread)))}"] if unread else []
    said = "; ".join([f"{pairs:,} pairs", *notes, *omissions.notes()])
    lines = [f"{options.target}: {said}", *_reading_notes(source)[bool(source.left) :]]
    sys.stdout.write("\n".join(map(printable, lines)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
