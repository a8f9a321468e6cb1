"""Writes docs/reliability.md from the results of the trials."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOCK_NOTE = """\
"Stock" is what the same libraries did when they were used as their documentation shows, measured
once, by hand, with few trials: it says that a failure exists, not how often it comes. A dash: not
measured."""


@dataclass(frozen=True)
class Line:
    """A row of the table: what is claimed, how often it is tried, and what stock does."""

    title: str
    trials: int
    """Trials of the whole `make torture`, for each stage where the title says so."""
    stock: str


LINES = {
    "random_kills": Line(
        "kill -9 at a random moment of base, SFT, reward and PPO; the same command again; "
        "same bytes as uninterrupted", 15,
        "HF Trainer resumes to the same bits where the kill misses a save (6 of 6)",
    ),
    "commit_kills": Line(
        "kill -9 inside the writing of a checkpoint or an output of each of the four; "
        "same command, same bytes", 10,
        "HF Trainer: 0 of 4 resume (no valid checkpoint found; the older good one is ignored)",
    ),
    "damaged_checkpoints": Line(
        "damaged checkpoint: detected, named, the one before it used", 20,
        "a flipped bit loads silently, in safetensors and in torch.save (0 of 2 detected)",
    ),
    "damaged_models": Line(
        "damaged model among a stage's inputs: refused with exit 2, nothing touched", 20,
        "dvc checkout hands the damaged bytes out with exit 0",
    ),
    "full_disks": Line(
        "disk full at a random point: last checkpoint and earlier outputs kept, same bytes once "
        "there is room", 12,
        "HF: half a checkpoint is written, and resuming fails on it although an older one is good",
    ),
    "killed_parents": Line(
        "parent of a stage killed: no orphan after ten seconds", 50,
        "dvc killed or terminated: its stage lives on and writes (2 of 2)",
    ),
    "double_starts": Line(
        "a stage started twice at once: exactly one writer at a time", 50,
        "dvc refuses the second repro; an orphan and a new repro both write",
    ),
    "planted_non_finite": Line(
        "NaN or infinity planted in a weight: stop within a step, exit 3, no such checkpoint", 10,
        "HF Trainer: loss shown as 0.0, exit 0, the NaN is saved",
    ),
    "tracking_away": Line(
        "tracking server away for good: metrics lost, or there twice, after `make sync`", 1,
        "synchronous logging blocks up to 127 s for 60 s; asynchronous loses 162 of 300 metrics",
    ),
    "fresh_databases": Line(
        "eight processes at once on a database that does not exist yet: all work", 1,
        "three of four crash (duplicate column name)",
    ),
    "malicious": Line(
        "malicious artefacts of ten kinds: none executed", 10,
        "mlflow.pyfunc.load_model runs a pickle by default",
    ),
    "canaries": Line(
        "secrets in environment and tracking address: found in logs, records or outputs", 10,
        "training_args.bin holds hub_token in clear",
    ),
}  # fmt: skip

WHAT_HAPPENS = """\
## What happens when

- **A training stage is killed** (base, sft, reward, ppo): start it again, by `make repro`, `make
  flow`, `dvc repro` or its own command. It goes on from its newest good checkpoint and ends with
  the same bytes. Checkpoints lie in `.work/<stage>/<fingerprint>`, one every 30 seconds (and never
  for more than 2 % of the time); at most that much work is done twice. After the outputs have been
  published they go. `RLHF_CHECKPOINT_SECONDS` and `RLHF_CHECKPOINT_STEPS` set another interval.
- **Params, data or code have changed** since the checkpoint: it is not used; the stage starts from
  the beginning and says what differs.
- **Ctrl-C or SIGTERM**: the stage writes a checkpoint after the current step and leaves; a step
  that takes longer than eight seconds is given up. A second Ctrl-C leaves at once.
- **NaN or infinity** in loss, gradient, score or weight: exit 3 within the step; no checkpoint and
  no output holds one; the message says what to try.
- **A damaged file** in a model that a stage reads: exit 2 with path, expected and found. `make
  doctor` says whether DVC's cache is sound; `dvc checkout --force PATH` brings the folder back.
- **The disk is full**: exit 1 with path and free space; checkpoints stay. DVC removes a stage's
  outputs before it runs the stage: the message names the `dvc checkout` that brings them back.
- **Out of memory**: exit 137 from `make repro` where the kernel killed the stage. Lower
  `micro_batch_size`, start again.
- **Anything else looks wrong**: `make doctor`, and `make doctor MEND=1` to mend what is safe."""

NOT_MEASURED = """\
Not tried here: power loss (only `fsync` is relied on), network file systems and object stores,
several nodes, and bit-exactness on a GPU."""


def write_page(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page; a row that has not been run says so."""
    rows = "\n".join(_row(name, line, results.get(name)) for name, line in LINES.items())
    remarks = "\n".join(
        f"- {line.title.partition(':')[0].partition(';')[0]}: {results[name]['remark']}."
        for name, line in LINES.items()
        if results.get(name, {}).get("remark")
    )
    runs = sorted({_run(result) for result in results.values()})
    path.write_text(
        f"""\
# Reliability, measured

Written by `make torture` (`python -m benchmarks.torture`); do not edit. The trials run the real
stages on a tiny world, with a checkpoint at each step, where a default run writes one every 30
seconds. A part of them is in `make test` (`tests/integration/test_torture.py`).

| what is tried | held | of | asked for | stock |
|---|--:|--:|--:|---|
{rows}

{remarks}

{STOCK_NOTE}

Runs: {"; ".join(runs)}.

{NOT_MEASURED}

{WHAT_HAPPENS}
""",
        encoding="utf-8",
    )


def _row(name: str, line: Line, result: Mapping[str, Any] | None) -> str:
    asked = line.trials * (4 if name.endswith("_kills") else 1)
    if result is None:
        return f"| {line.title} | not run | | {asked} | {line.stock} |"
    return f"| {line.title} | {result['held']} | {result['tried']} | {asked} | {line.stock} |"


def _run(result: Mapping[str, Any]) -> str:
    return f"commit `{result['commit']}`, seed {result['seed']}, {result['machine']}"
