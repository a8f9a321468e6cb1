"""Makes rows of preferences of texts that are none, as further sets for `near_duplicates`.

    python -m benchmarks.rows_of_texts DATA FOLDER

DATA holds `sentiment/raw/sentence_polarity.zip` (film reviews, of which the one that praises is
chosen), `lm_text/raw/wikitext2.{valid,test}.txt` (a paragraph of an encyclopaedia, preferred to the
next one) and `seed_tasks/sft.jsonl` (an instruction with its response, preferred to that of the
next one). Each becomes a file of JSON Lines in FOLDER. Questions have many answers, as in sets that
people made: the reviews are divided among forty, the paragraphs among the articles they are from.
"""

import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

QUESTIONS = 40
_LEAST_WORDS = 5
Row = tuple[str, str, str]


def reviews(data: Path) -> Iterator[Row]:
    """A sentence that praises a film and one that does not, beside each other by their place."""
    with zipfile.ZipFile(data / "sentiment/raw/sentence_polarity.zip") as archive:
        sides = {}
        for side in ("pos", "neg"):
            (name,) = (name for name in archive.namelist() if name.endswith(f".{side}"))
            sides[side] = archive.read(name).decode("latin-1").splitlines()
    for number, (good, bad) in enumerate(zip(sides["pos"], sides["neg"], strict=False)):
        yield f"Say in a sentence what you think of film {number % QUESTIONS}.", good, bad


def paragraphs(data: Path) -> Iterator[Row]:
    """Two paragraphs that follow each other, under the heading of their article."""
    for part in ("valid", "test"):
        article, texts = "", []
        for line in (data / f"lm_text/raw/wikitext2.{part}.txt").read_text("utf-8").splitlines():
            text = line.strip()
            if text.startswith("= ") and not text.startswith("= = "):
                yield from ((article, *both) for both in pairwise(texts))
                article, texts = f"Tell me about {text.strip('= ')}.", []
            elif len(text.split()) >= _LEAST_WORDS and not text.startswith("="):
                texts.append(text)
        yield from ((article, *both) for both in pairwise(texts))


def tasks(data: Path) -> Iterator[Row]:
    """An instruction, its response, and the response to the next instruction."""
    with (data / "seed_tasks/sft.jsonl").open(encoding="utf-8") as lines:
        for row, following in pairwise(map(json.loads, lines)):
            yield row["prompt"], row["response"], following["response"]


def _write(path: Path, rows: Iterable[Row]) -> None:
    names = ("prompt", "chosen", "rejected")
    lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path}: {len(lines):,} rows\n")


def main() -> None:
    """Writes the three files."""
    data, folder = map(Path, sys.argv[1:3])
    folder.mkdir(parents=True, exist_ok=True)
    for make in (reviews, paragraphs, tasks):
        _write(folder / f"{make.__name__}.jsonl", make(data))


if __name__ == "__main__":
    main()
