"""Stage `prepare`: prompts, demonstrations, corpus and the initial preferences.

Generates the embedded support desk, or reads your own files (`prepare.files`), whose rows may have
different forms. All data sets are JSON Lines.
"""

import codecs
import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.support_desk.corpus import sample_document
from data.support_desk.intents import Split
from data.support_desk.splits import sample_requests
from data.support_desk.templates import select_templates
from data.support_desk.writers import sample_writer, write_response
from preferences.formats.files import container_of
from preferences.memory import memory_capped
from preferences.records import compact_json
from preferences.schemas import CORPUS
from preferences.sources import gather
from preferences.withdrawals import Withdrawals, WithdrawalsError, load_withdrawals
from rlhf.named_seeds import named_random
from tasks.own_data.rows import (
    MIN_EVALUATED,
    distinct,
    own_demonstrations,
    own_prompts,
    own_rows,
    own_split,
    read_preferences,
)
from tasks.params.prepare import FilesParams, PrepareParams
from tasks.running.outcome import StageEnd
from tasks.running.progress import say_left_out, track
from tasks.running.runner import run_stage
from tasks.running.stage import Stage
from tasks.running.staging import write_json_lines

INPUTS = ("data/withdrawn/judgments.jsonl", "data/withdrawn/texts.jsonl")
Rows = Sequence[Mapping[str, Any]]


def run(stage: Stage) -> None:
    """Write the data sets of the pipeline, without what was withdrawn."""
    folder = stage.staging.directory("data/prepared")
    params = stage.params.prepare
    withdrawn = load_withdrawals(Path("data/withdrawn/texts.jsonl"))
    if params.files is None:
        _support_desk(folder, params, stage.params.run.seed, withdrawn)
    try:
        with memory_capped(params.max_memory):
            if params.files is not None:
                _own_files(folder, params.files, withdrawn)
            if params.sources:
                _add_sources(folder / "preferences", params, withdrawn)
    except MemoryError:
        needed = f"your data need more than {params.max_memory:g} GiB of memory"
        raise StageEnd("bad_input", f"{needed} (prepare.max_memory)") from None


def _support_desk(folder: Path, params: PrepareParams, seed: int, withdrawn: Withdrawals) -> None:
    templates = select_templates(train=params.train_templates)
    counts: dict[Split, int] = {
        "train": params.train_prompts,
        "heldout": params.heldout_prompts,
        "test": params.test_prompts,
    }
    for split, count in counts.items():
        drawing = named_random(seed, "prepare", "prompts", split)
        requests = sample_requests(split, count, drawing, templates=templates)
        prompts = withdrawn.kept(_prompt(r.text) for r in requests)
        _write(folder / "prompts" / f"{split}.jsonl", prompts)
    writing = named_random(seed, "prepare", "writers")
    drawing = named_random(seed, "prepare", "demonstrations")
    sampled = sample_requests("train", params.demonstrations, drawing, templates=templates)
    demonstrations = [
        {**_prompt(r.text), "response": write_response(r, sample_writer(writing), writing)}
        for r in track(sampled, "prepare", len(sampled), "demonstrations")
    ]
    _write(folder / "demonstrations.jsonl", withdrawn.kept(demonstrations))
    documents = named_random(seed, "prepare", "corpus")
    count = params.corpus_documents
    numbers = track(range(count), "prepare", count, "documents")
    corpus = [{"text": sample_document(documents, templates=templates)} for _ in numbers]
    _write(folder / "corpus.jsonl", withdrawn.kept(corpus))
    _write_preferences(folder, [])


def _own_files(folder: Path, files: FilesParams, withdrawn: Withdrawals) -> None:
    given = withdrawn.kept(own_prompts(_existing("prompts", files.prompts)))
    prompts = distinct(given)
    more = len(given) - len(prompts)
    say_left_out(more, len(given), "prompts", f"{files.prompts}: they repeat others")
    parts: dict[str, list[Mapping[str, Any]]] = {"train": [], "heldout": [], "test": []}
    for row in prompts:
        parts[own_split(row["prompt"], files)].append(row)
    for split, rows in parts.items():
        if not rows:
            raise StageEnd("bad_input", f"{files.prompts}: no prompt falls into split {split}")
        if split != "train" and len(rows) < MIN_EVALUATED:
            few = f"only {len(rows)} of the prompts falls into split {split}"
            raise StageEnd("bad_input", f"{files.prompts}: {few}, expected {MIN_EVALUATED} or more")
        (folder / "prompts").mkdir(exist_ok=True)
        write_json_lines(folder / "prompts" / f"{split}.jsonl", rows)
    if files.demonstrations is not None:
        demonstrations = own_demonstrations(_existing("demonstrations", files.demonstrations))
        write_json_lines(folder / "demonstrations.jsonl", withdrawn.kept(demonstrations))
    if files.corpus is None:
        _write(folder / "corpus.jsonl", [])
    else:
        _own_corpus(folder / "corpus.jsonl", _existing("corpus", files.corpus), withdrawn)
    preferences: Rows = []
    if files.preferences is not None:
        found = read_preferences(_existing("preferences", files.preferences))
        preferences = withdrawn.kept(found)
    _write_preferences(folder, preferences)


def _own_corpus(path: Path, source: Path, withdrawn: Withdrawals) -> None:
    """Write the documents; a plain file that nothing is left out of keeps its bytes."""
    if _plain(source) and not withdrawn.tombstones:
        shutil.copyfile(source, path)
    else:
        write_json_lines(path, withdrawn.kept(own_rows(source, CORPUS)))


def _plain(path: Path) -> bool:
    """Whether a file is JSON Lines, neither packed nor with a byte order mark."""
    if path.is_dir() or path.suffix == ".gz" or container_of(path) != "jsonl":
        return False
    with path.open("rb") as stream:
        return stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8


def _add_sources(folder: Path, params: PrepareParams, withdrawn: Withdrawals) -> None:
    sources = [one for one in params.sources if not withdrawn.holds("source", one.path)]
    gathered = gather(
        sources,
        heldout_fraction=params.heldout_preferences,
        withdrawn=load_withdrawals(Path("data/withdrawn/judgments.jsonl")),
    )
    for each in gathered:
        without = each.skipped + each.alone + each.left
        why = f"{each.skipped} skipped, {each.alone} without an opponent"
        why += f", {each.left} of prompts with very many pairs" if each.left else ""
        total = len(each.rows) + without
        say_left_out(without, total, "pairs", f"{each.source.path}: {why}")
        for row in each.malformed:
            sys.stderr.write(f"malformed, set aside: {row}\n")
    for split in ("train", "heldout"):
        rows = [row.to_row() for each in gathered for row in each.rows if row.split == split]
        with (folder / f"{split}.jsonl").open("a", encoding="utf-8", newline="") as stream:
            stream.writelines(compact_json(row) + "\n" for row in withdrawn.kept(rows))
    (folder / "sources.jsonl").write_text(
        "".join(compact_json(each.to_row()) + "\n" for each in gathered), encoding="utf-8"
    )


def _existing(key: str, path: str) -> Path:
    if not Path(path).exists():
        raise StageEnd("bad_input", f"prepare.files.{key}: {path}: no such file")
    return Path(path)


def _prompt(text: str) -> dict[str, str]:
    return {"prompt_id": hashlib.sha256(text.encode()).hexdigest()[:16], "prompt": text}


def _write_preferences(folder: Path, rows: Rows) -> None:
    for split in ("train", "heldout"):
        chosen = [row for row in rows if row["split"] == split]
        _write(folder / "preferences" / f"{split}.jsonl", chosen)


def _write(path: Path, rows: Rows) -> None:
    """Write rows, each with its own columns and its numbers in full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(compact_json(row) + "\n" for row in rows)


if __name__ == "__main__":
    sys.exit(run_stage("prepare", run, inputs=INPUTS, errors={WithdrawalsError: "bad_input"}))
