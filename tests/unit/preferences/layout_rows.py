"""Rows of preference data in several layouts, and the pairs that they are read as."""

import json

from preferences.formats.maps import layout_of
from preferences.formats.reading import open_source
from preferences.formats.writing import Unsettled


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settled(path, text, **options):
    """(prompt, chosen, rejected, margin, label) of all pairs, ties included."""
    source = open_source(path, layout=layout_of(text), **options)
    rows = [each.preference for each in Unsettled().settle(source, keep_ties=True)]
    return [(row.prompt, row.chosen, row.rejected, row.margin, row.label) for row in rows]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def alpaca(number, preference):
    return {
        "dataset": "helpful_base",
        "instruction": f"i{number}",
        "output_1": "one",
        "generator_1": "text_davinci_003",
        "output_2": "two",
        "generator_2": "other",
        "annotator": "alpaca_eval_gpt4",
        "preference": preference,
    }


GOOD = [
    {"prompt": f"Question {n}?", "chosen": f"Answer {n} with words.", "rejected": f"No {n}."}
    for n in range(60)
]
