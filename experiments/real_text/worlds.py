"""The two data sets of `real_text`: what the pipeline learns from, and what its judge does.

No text is in both. The prompts of evaluation are in neither the demonstrations nor the pairs.
"""

import hashlib
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.own_data.rows import own_split
from tasks.params.prepare import FilesParams

FILES = FilesParams(
    prompts="mine/prompts.jsonl",
    demonstrations="mine/demonstrations.jsonl",
    heldout_fraction=0.3,
    test_fraction=0.1,
)
"""As `params.yaml` beside this module has it."""

Pair = Mapping[str, str]
"""`prompt`, `chosen` and `rejected`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a run of the pipeline and its judge learn from."""

    prompts: Sequence[str]
    demonstrations: Sequence[Mapping[str, str]]
    pairs: Sequence[Pair]
    judge_pairs: Sequence[Pair]
    unseen: Sequence[Pair]
    """Pairs of evaluation prompts, which train neither: they say how good both are."""
    shown: Sequence[str]
    """Prompts of our own, whose responses are printed: none of the data is."""


JUDGE_SHARE = 0.3
"""Share of the polite instructions that the judge alone sees."""
WORDS = 2
"""Words of a sentence that its prompt gives away."""
JUDGE_PAIRS = 250
"""Pairs of passages that train the judge of the sentiment task."""
DEMONSTRATIONS = 400
"""Sentences that SFT learns to continue."""
PROMPTS = 3000
"""Beginnings of sentences that are to be continued."""
PAIRS = 300
"""Pairs of sentences that train the reward model of the sentiment task."""
UNSEEN = 300
"""Pairs of sentences that measure both models of the sentiment task."""


def polite(data: Path, files: FilesParams) -> World:
    """Instructions with a polite and an impolite response (Raschka 2024).

    Half of the demonstrations are impolite, so that SFT is, too, and PPO has something to learn.
    """
    path = data / "polite_instructions" / "preferences.jsonl"
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    pairs = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in rows]
    judged = [pair for pair in pairs if _fraction("judge", pair["prompt"]) < JUDGE_SHARE]
    ours = [pair for pair in pairs if _fraction("judge", pair["prompt"]) >= JUDGE_SHARE]
    trained = [pair for pair in ours if own_split(pair["prompt"], files) == "train"]
    return World(
        prompts=[pair["prompt"] for pair in ours],
        demonstrations=[
            {"prompt": pair["prompt"], "response": pair["chosen" if mild else "rejected"]}
            for pair in trained
            for mild in [_fraction("demonstration", pair["prompt"]) < 0.5]
        ],
        pairs=trained,
        judge_pairs=judged,
        unseen=[pair for pair in ours if pair not in trained],
        shown=(
            "Correct the spelling: accomodation",
            "Name three things that float on water.",
            "Convert 3 hours to minutes.",
            "What is the opposite of 'generous'?",
            "Rewrite in the past tense: She buys bread every morning.",
            "Which planet is closest to the sun?",
            "Write a sentence with the word 'lantern'.",
            "How many legs do two spiders have together?",
        ),
    )


def sentiment(data: Path, files: FilesParams) -> World:
    """Sentences of film reviews to be continued (Pang and Lee 2005), praise preferred.

    Two sentences, one of praise and one of blame, that begin with the same words are a pair. The
    judge learns from longer reviews of another corpus (Pang and Lee 2004), labelled as a whole.
    """
    raw = data / "sentiment" / "raw"
    sentences = _sentences(raw / "sentence_polarity.zip")
    pairs = list(_paired(sentences, shortest=8, longest=40))
    pairs.sort(key=lambda pair: _fraction("pair", json.dumps(pair)))
    trained = [pair for pair in pairs if own_split(pair["prompt"], files) == "train"][:PAIRS]
    every = [sentence for side in sentences.values() for sentence in side]
    begun = sorted({_split(sentence)[0] for sentence in every if len(sentence.split()) >= 8})
    chosen = sorted(begun, key=lambda prompt: _fraction("prompt", prompt))[:PROMPTS]
    shown = [
        {"prompt": prompt, "response": rest}
        for prompt, rest in map(_split, every)
        if own_split(prompt, files) == "train" and 6 <= len(rest.split()) <= 38
    ]
    shown.sort(key=lambda row: _fraction("demonstration", json.dumps(row)))
    passages = list(_paired(_passages(raw / "movie_reviews.zip"), shortest=15, longest=70))
    passages.sort(key=lambda row: _fraction("judge", json.dumps(row)))
    return World(
        prompts=sorted({*chosen, *(pair["prompt"] for pair in trained)}),
        demonstrations=shown[:DEMONSTRATIONS],
        pairs=trained,
        judge_pairs=passages[:JUDGE_PAIRS],
        unseen=[pair for pair in pairs if own_split(pair["prompt"], files) != "train"][:UNSEEN],
        shown=[
            f"Continue this sentence from a film review: {words}"
            for words in (
                "the actors",
                "halfway through",
                "her performance",
                "every scene",
                "my popcorn",
                "this sequel",
                "we leave",
                "its music",
            )
        ],
    )


WORLDS = {"polite": polite, "sentiment": sentiment}


def _sentences(path: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(path) as archive:
        return {
            side: sorted(set(archive.read(name).decode("latin-1").splitlines()))
            for side in ("pos", "neg")
            for name in [f"sentence_polarity/rt-polarity.{side}"]
        }


def _passages(path: Path) -> dict[str, list[str]]:
    """Pairs of neighbouring sentences at the end of each review, where it comes to its verdict."""
    found: dict[str, list[str]] = {"pos": [], "neg": []}
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            _, side, file = (*name.split("/"), "", "")[:3]
            if side in found and file.endswith(".txt"):
                lines = archive.read(name).decode("latin-1").splitlines()
                last = [line.strip() for line in lines][-6:]
                found[side] += [f"{a} {b}" for a, b in zip(last[::2], last[1::2], strict=False)]
    return found


def _paired(
    sides: Mapping[str, Sequence[str]], *, shortest: int, longest: int
) -> Iterator[dict[str, str]]:
    """Texts of both sides that begin alike, each used once, in the order of hashes."""
    begun: dict[str, dict[str, list[str]]] = {side: defaultdict(list) for side in sides}
    for side, texts in sides.items():
        for text in sorted(set(texts), key=lambda text: _fraction("pair", text)):
            if shortest <= len(text.split()) <= longest:
                prompt, rest = _split(text)
                begun[side][prompt].append(rest)
    for prompt in sorted(begun["pos"].keys() & begun["neg"].keys()):
        for chosen, rejected in zip(begun["pos"][prompt], begun["neg"][prompt], strict=False):
            yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _split(text: str) -> tuple[str, str]:
    words = text.split()
    begin = " ".join(words[:WORDS])
    return f"Continue this sentence from a film review: {begin}", " ".join(words[WORDS:])


def _fraction(purpose: str, text: str) -> float:
    """A number from 0 to 1 that depends on both alone."""
    digest = hashlib.sha256(f"{purpose}\n{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
