"""Small preference data, and how tests write and read them."""

from preferences.formats.reading import open_source
from preferences.formats.writing import write_items
from preferences.records import Preference, Sourced, pair_id, prompt_text, text_hash

CONTAINERS = [
    "x.jsonl", "x.jsonl.gz", "x.json", "x.json.gz", "x.csv", "x.csv.gz", "x.parquet",
    "x.parquet.gz",
]  # fmt: skip


TRICKY = [
    "12",
    "true",
    "null",
    "[1]",
    '{"a": 1}',
    '"quoted"',
    "-",
    "- a list",
    "1. one",
    'a,b\n"c"',
]


MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hé, où?"},
]


def preference(prompt, chosen, rejected, **more):
    more = {"source": "human", "round": "r1", "margin": 0.5} | more
    return Preference(
        pair_id=pair_id(prompt, chosen, rejected), prompt=prompt, chosen=chosen, rejected=rejected,
        **{"prompt_id": text_hash(prompt_text(prompt))} | more,
    )  # fmt: skip


PREFERENCES = [
    preference("Where is my parcel?", "On its way.", "No idea.", split="heldout", weight=0.5),
    preference("„Quoted“ 🙂", " leading space", "trailing \n"),
    preference("Where?", "", "blank against this"),
    preference("Cut?", "Whole.", "Not who", rejected_finished=False),
    *(preference(f"tricky {text}", text, f"not {text}") for text in TRICKY),
    preference(MESSAGES, "Là.", "Nowhere."),
]


def write(path, preferences, to):
    return write_items(path, [Sourced(each, "") for each in preferences], to)


def read(path, name=None):
    return [item.preference for item in open_source(path, name)]


VOTES = {
    "prompt": "p", "response_a": "x", "response_b": "y",
    "votes": ["a", "b", "a", "tie", "a", "skip", "both_bad"],
    "workers": ["w1", "w2", "w3", "w4", "w5", "w6", "w7"], "round": "r1", "prompt_id": "p1",
}  # fmt: skip
