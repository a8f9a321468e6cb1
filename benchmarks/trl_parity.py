"""Compares our PPO with the last TRL that had one, 1.12.0, on the same inputs.

    make trl-parity            # or: python -m benchmarks.trl_parity

TRL gets an environment of its own (benchmarks/trl_environment.py): it holds TRL alone and borrows
the pinned torch and transformers of `.venv`, so both sides compute with the same ones. Both read
the same models and arrays; TRL runs its own code (benchmarks/trl_side.py), we ours;
`docs/trl-parity.md` is written from the differences. Exit code 1 if one is larger than its row
allows.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.trl_comparisons import (
    Row,
    compare_arithmetic,
    compare_ends,
    compare_models,
    compare_rewards,
)
from benchmarks.trl_environment import WITH_PPO, make_environment
from benchmarks.trl_inputs import RESPONSES, make_inputs, make_models

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".work" / "trl-parity"
PAGE = ROOT / "docs" / "trl-parity.md"


def page(rows: Sequence[Row]) -> str:
    """docs/trl-parity.md."""
    lines = [
        f"# Parity with the PPO of TRL {WITH_PPO}",
        "",
        "Written by `make trl-parity` (`python -m benchmarks.trl_parity`). TRL 1.12.0 is the last",
        "release with a PPO trainer (`trl.experimental.ppo`); 1.13.0 has none. It runs in an",
        "environment of its own with the same torch and transformers. Its helpers are called; its",
        "rewards, GAE and losses, which stand inside `PPOTrainer.train`, are executed from its",
        f"installed source. {RESPONSES} responses of at most 12 tokens, some ended, some cut;",
        "models in float32, arithmetic in float64.",
        "",
        "| what | largest difference | allowed | where it comes from |",
        "|---|---|---|---|",
        *(
            f"| {row.what} | {row.difference:.1e} | {row.allowed:.0e} | {row.note} |"
            for row in rows
        ),
        "",
        "Where a row names a defect of TRL, it reproduces TRL's number from ours, which shows that",
        "the defect is the whole difference.",
        "",
        "- **Defect 1**: padding that equals the end token. TRL takes the end for padding. Our",
        "  masks come from lengths: such a tokenizer gives the bits of one with its own pad token.",
        "- **Defect 2**: the score of a response that ended falls on the padding behind its end,",
        "  that of a cut one on its last token. Ours always falls on the last real token.",
        "- **Defect 3**: logged means over the padding. In 1.12.0 `objective/entropy` is masked;",
        "  `policy/approxkl_avg`, `policy/entropy_avg` and `val/ratio` are not.",
        "",
        "Not compared: an adaptive KL controller, which TRL 1.12.0 no longer has; ours is tested",
        "against the worked numbers of Ziegler et al.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run both sides, write the page; 1 if a difference is too large."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    python = make_environment(ROOT / ".work", WITH_PPO)
    models, classifier = make_models()
    rollout, given = make_inputs(models, classifier, FOLDER)
    arrays: dict[str, Any] = {name: value.numpy() for name, value in given.items()}
    np.savez(FOLDER / "inputs.npz", **arrays)
    subprocess.run([python, ROOT / "benchmarks" / "trl_side.py", FOLDER], check=True)
    with np.load(FOLDER / "outputs.npz") as file:
        trl = {name: torch.from_numpy(file[name]) for name in file.files}
    rows = [
        *compare_models(rollout, trl),
        *compare_arithmetic(given, trl),
        *compare_rewards(rollout, given, trl),
        *compare_ends(rollout, trl),
    ]
    PAGE.write_text(page(rows), encoding="utf-8")
    for row in rows:
        mark = "ok" if row.sound else "TOO LARGE"
        print(f"{row.what:55} {row.difference:9.1e}  allowed {row.allowed:.0e}  {mark}")
    return 0 if all(row.sound for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
