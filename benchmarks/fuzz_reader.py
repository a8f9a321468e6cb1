"""Searches for files that the reader does not survive: no crash, no hang, one clear error or rows.

    python -m benchmarks.fuzz_reader --minutes 60 --seed 0 --found tests/corpus

Files are written as they may come from anywhere: rows of all formats and layouts with fields
dropped, swapped, retyped and nested, then with bytes changed, cut, repeated or inserted, in every
container, packed or not. Each is read by the format that it is detected as, by one drawn, or by a
map. The reader may return pairs or raise `MalformedDataError`; a file on which it does anything
else, or takes longer than `--slow` seconds of the processor, is kept in the folder `--found`. What
is read must be the same when it is read again. Rows and damage are drawn by hypothesis; each batch
has its own seed, so that `--seed N --batches 1` repeats it.

The minutes are those of the processor, so that a busy machine makes no shorter search. A line is
printed after each batch, with what all batches so far have come to.
"""

import argparse
import gzip
import hashlib
import io
import json
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from preferences.formats.files import write_records
from preferences.formats.known_layouts import KNOWN_LAYOUTS
from preferences.formats.maps import layout_of
from preferences.formats.reading import FORMATS, open_source
from preferences.opening import Limits
from preferences.reader import MalformedDataError
from tests.malformed import GOOD, OWN, SCORED, TASK, UNPAIRED, VOTES

LIMITS = Limits(unpacked_bytes=1 << 22, blank_lines=1000, problems=1000, held_bytes=1 << 22)
HANGS_AFTER = 20
"""Seconds on the clock after which reading one file counts as a hang."""
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "\n\nHuman: p\n\nAssistant: a", "[", '"x"', "null", "\u202e", "1e999"]
    ),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(width=32), TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "replies", "text", "rank", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
MESSAGE = {"message_id": "m", "parent_id": None, "role": "prompter", "text": "q", "rank": 0}
ROWS: list[dict[str, Any]] = [
    GOOD[0], OWN, SCORED, TASK, UNPAIRED, VOTES, MESSAGE,
    {"prompt": {**MESSAGE, "replies": [{**MESSAGE, "role": "assistant"}] * 2}},
    {"chosen": "\n\nHuman: p\n\nAssistant: a", "rejected": "\n\nHuman: p\n\nAssistant: b"},
    {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1.5},
    {"history": "h", "human_ref_A": "a", "human_ref_B": "b", "labels": 1},
    {"prompt": "p", "answers": [{"answer": "a", "rank": 1}, {"answer": "b", "rank": 2}]},
    {"question": {"full_text": "q"}, "answer_0": "a", "answer_1": "b", "score_0": 1, "score_1": -1},
]  # fmt: skip
NAMES = ["x.jsonl", "x.json", "x.csv", "x.tsv", "x.parquet", "x.xlsx"]


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of one kind, some with a field changed, dropped, added or under another's name."""
    kind = draw(st.sampled_from(ROWS))
    made = []
    for _ in range(draw(st.integers(0, 4))):
        row = dict(kind)
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.sampled_from(sorted(kind)))
            what = draw(st.sampled_from(["value", "drop", "add", "swap"]))
            if what == "drop":
                row.pop(name, None)
            elif what == "swap":
                row[name] = row.get(draw(st.sampled_from(sorted(kind))))
            else:
                row[name if what == "value" else draw(TEXTS)] = draw(VALUES)
        made.append(row)
    return made


def packed(name: str, content: list[dict[str, Any]]) -> bytes:
    """Rows as the bytes of a file; those that a container cannot hold become JSON Lines."""
    if name in ("x.jsonl", "x.json", "x.xlsx"):
        text = json.dumps(content)
        lines = "".join(json.dumps(row) + "\n" for row in content)
        return (text if name == "x.json" else lines).encode("utf-8", "surrogatepass")
    try:
        if name == "x.parquet":
            stream = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(content), stream)
            return stream.getvalue()
        with tempfile.TemporaryDirectory() as folder:
            write_records(Path(folder) / name, content)
            return (Path(folder) / name).read_bytes()
    except (MalformedDataError, ValueError, TypeError, pa.ArrowException, OverflowError):
        return json.dumps(content).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with up to three pieces changed, cut out, repeated or put in."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 8)))
        piece = draw(
            st.one_of(
                st.just(b""),
                st.binary(max_size=4),
                st.sampled_from([b'"', b"{", b"[" * 50, b"\n", b"\r", b"\x00", b"\xff", b"\\u"]),
                st.just(content[start:end] * 40),
            )
        )
        content = content[:start] + piece + content[end:]
    return content


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes, str | None, str | None, int]:
    """A file's name and bytes, the format and the map it is read with, and rows to set aside."""
    name = draw(st.sampled_from(NAMES))
    content = draw(damaged(packed(name, draw(rows()))))
    if draw(st.booleans()):
        name, content = f"{name}.gz", draw(damaged(gzip.compress(content, mtime=0)))
    form = draw(st.one_of(st.none(), st.sampled_from(FORMATS)))
    layout = draw(st.one_of(st.none(), st.sampled_from(sorted(KNOWN_LAYOUTS))))
    return name, content, None if layout else form, layout, draw(st.sampled_from([0, 0, 2]))


def read(path: Path, form: str | None, layout: str | None, skip: int) -> str:
    """Reads a file twice as `check` does, and says how it ended."""
    try:
        source = open_source(
            path,
            form,  # type: ignore[arg-type]
            layout=layout_of(layout) if layout else None,
            skip_malformed=skip,
            limits=LIMITS,
        )
        first = [repr(item) for item in source]
        assert first == [repr(item) for item in source], "other pairs the second time"
    except MalformedDataError as error:
        if not all(line.isprintable() and line for line in str(error).split("\n")):
            raise AssertionError("an error that cannot be printed") from error
        return "refused"
    return "read" if first else "empty"


class Search:
    """Counts what became of the files, and keeps those that the reader did not survive."""

    def __init__(self, folder: Path, found: Path, slow: float, ends: float) -> None:
        """Writes into `folder` while it runs and into `found` what it finds.

        `ends` is a time of the processor.
        """
        self._folder, self._found, self._slow, self._ends = folder, found, slow, ends
        self.counts = {"read": 0, "empty": 0, "refused": 0, "found": 0}

    def over(self) -> bool:
        """Whether the time is up."""
        return time.process_time() > self._ends

    def try_file(self, file: tuple[str, bytes, str | None, str | None, int]) -> None:
        """Reads one file."""
        if self.over():
            return
        name, content, form, layout, skip = file
        path = self._folder / name
        path.write_bytes(content)
        before = time.process_time()
        signal.alarm(HANGS_AFTER * 10)
        try:
            outcome = read(path, form, layout, skip)
            if time.process_time() - before > self._slow:
                raise TimeoutError(f"{time.process_time() - before:.1f} s")
        except Exception:
            outcome = "found"
            self._keep(file, traceback.format_exc())
        finally:
            signal.alarm(0)
            path.unlink()
        self.counts[outcome] += 1

    def _keep(self, file: tuple[str, bytes, str | None, str | None, int], why: str) -> None:
        """Writes the file, and beside it how it was read and what happened."""
        name, content, form, layout, skip = file
        last = why.strip().splitlines()[-1]
        key = hashlib.sha256(last.encode("utf-8", "replace")).hexdigest()[:8]
        folder = self._found / key
        if folder.exists():
            return
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        how = {"file": name, "format": form, "map": layout, "skip_malformed": skip, "was": last}
        (folder / "how.json").write_text(json.dumps(how, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{folder}: {last}\n{why}\n")
        sys.stdout.flush()


def _hangs(*_: object) -> None:
    raise TimeoutError("hangs")


def run_batch(number: int, size: int, search: Search) -> None:
    """Files drawn from one seed."""

    @seed(number)
    @settings(
        max_examples=size,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(files())
    def batch(file: tuple[str, bytes, str | None, str | None, int]) -> None:
        search.try_file(file)

    batch()


def main() -> int:
    """Searches until the time or the batches are up; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="of the processor")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first batch")
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=500, help="files in a batch")
    parser.add_argument("--slow", type=float, default=2.0, help="seconds of the processor")
    parser.add_argument("--found", type=Path, default=Path(".work/fuzz"))
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _hangs)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder), options.found, options.slow, 60 * options.minutes)
        number = options.seed
        while number < options.seed + options.batches and not search.over():
            run_batch(number, options.size, search)
            counts = ", ".join(f"{count:,} {outcome}" for outcome, count in search.counts.items())
            sys.stdout.write(
                f"seeds {options.seed} to {number}, {sum(search.counts.values()):,} files in "
                f"{time.process_time() / 60:.1f} minutes of the processor "
                f"({(time.monotonic() - started) / 60:.1f} on the clock): {counts}\n"
            )
            sys.stdout.flush()
            number += 1
    return 1 if search.counts["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
