"""Sixty sound pairs, and how tests write rows."""

import json

ROWS = [
    {"prompt": f"Question {n}?", "chosen": f"Answer {n} with words.", "rejected": f"No {n}."}
    for n in range(60)
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
