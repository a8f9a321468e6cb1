"""Writes docs/reliability.md from the results of the trials."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.torture.rows import ROWS, Row

STOCK_NOTE = """\
"Stock" is what the same libraries did when used as their documentation shows, measured once, by
hand, with few trials: it shows that a failure exists, not how often it occurs. A dash: not
measured."""

WHAT_HAPPENS = """\
## What happens when

- **A training stage is killed** (base, sft, reward, ppo): run it again with `make repro`, `make
  flow`, `dvc repro` or its own command. It resumes from its newest good checkpoint and ends with
  the same bytes. Checkpoints lie in `.work/<stage>/<fingerprint>`, one every 30 seconds (and never
  for more than 2 % of the time); at most that much work is done twice. They are deleted once DVC
  has recorded the outputs, by the next stage or the driver: a stage whose outputs DVC could not
  record, because it was killed or the disk filled, resumes and does not train again.
  `.work/<stage>/outcome.json` says what they cost (`checkpoint_seconds` of `seconds`).
  `RLHF_CHECKPOINT_SECONDS` and `RLHF_CHECKPOINT_STEPS` set another interval.
- **`dvc repro`, `make repro` or `make flow` is killed, or any process below them**: what it started
  ends by itself within seconds, with a checkpoint. Run the same command again to resume; `make
  repro` and `make flow` remove locks that dead processes left, and report them. A bare `dvc repro`
  cannot read its own lock file if it was killed while it wrote that: `make doctor FIX=1`, or `make
  repro`, removes it.
- **Params, data or code have changed** since the checkpoint: it is not used; the stage starts from
  the beginning and says what differs.
- **Params, data or code change while a stage runs** (an edit, a `git checkout`): exit 2 with what
  changed, old and new. Nothing is published, dvc.lock and DVC's run cache stay as they were, and
  the checkpoint is kept: with the old state the stage continues from it, with the new one it starts
  from the beginning. An edit in the instant before DVC writes dvc.lock is found by the next stage,
  at the end of `python -m tasks.repro` (exit 6) and of the flow (`Stale`), and by `make doctor`;
  `make doctor FIX=1` removes the false entry, so that the stage runs again.
- **Ctrl-C**: the stage finishes the current step, however long, writes a checkpoint and ends; a
  second Ctrl-C ends it at once. **SIGTERM**: the same, but a step that needs more than eight
  further seconds is abandoned; steps of over four seconds are therefore saved as they finish,
  within the 2 %. A checkpoint that has begun may take what the sender leaves it: a minute from
  `make repro`, eight seconds from a flow. Further SIGTERMs change nothing: `timeout`, make and a
  service manager may each send one.
- **NaN or infinity** in loss, gradient, score or weight: exit 3 within the step; no checkpoint and
  no output contains one; the message says what to try.
- **A damaged or missing file** in a model that a stage reads, its manifest included (which carries
  a digest of itself): exit 2 with path, expected and found. A model of your own for `base.model`
  needs no manifest. `make doctor` says whether DVC's cache is sound, and names the command that
  restores the folder, for a variant's with its place: `dvc checkout --force PATH`, or
  `dvc pull PATH` or `make repro` where the cache has no intact copy.
- **The disk is full**: exit 1 with path and free space; checkpoints are kept. DVC removes a stage's
  outputs before it runs the stage: the message names the `dvc checkout` that restores them.
- **MLflow's server is down**: training is not affected; what was not sent waits in `.work/spool`
  for the next stage or `make sync`.
- **Prefect's server is down** while a flow runs: the running stage continues. To report a page of
  numbers or the end of the run, the flow retries for up to four minutes
  (`PREFECT_CLIENT_MAX_RETRIES`); then it skips the page. A run that cannot report its end fails
  although its work is done; the next one recomputes nothing, since DVC has the results.
- **A chat template** of your own model is rendered in a separate process, with at most 256 MB and
  2 s of processor time per prompt, and may produce at most a million characters: else exit 2.
- **A password in an address** in params.yaml: refused with its key, since DVC and MLflow store
  params in clear.
- **Out of memory**: exit 137 from `python -m tasks.repro` if the kernel killed the stage (make
  turns it into 2 and prints `Error 137`). Lower `micro_batch_size` and run it again.
- **A note below `.work` is damaged**, by a disk or by hand: `make repro` and the stages name it and
  end with 2; `make doctor FIX=1` removes it. Notes, outputs and checkpoints are forced to the disk
  before they take the place of earlier ones. DVC forces nothing, so a loss of power may damage
  `dvc.lock` or its cache; `make doctor` names either.
- **Anything else looks wrong**: `make doctor`, and `make doctor FIX=1` to apply the safe fixes."""

NOT_MEASURED = """\
Not tried here: power loss (only `fsync` is relied on), network file systems and object stores,
several nodes, and bit-exactness on a GPU."""


def write_page(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page; a row that has not been run says so."""
    rows = "\n".join(_row(row, results.get(name)) for name, row in ROWS.items())
    remarks = "\n".join(
        line
        for name, row in ROWS.items()
        if name in results
        for line in _remarks(row, results[name])
    )
    runs = sorted({_run(result) for result in results.values()})
    path.write_text(
        f"""\
# Reliability, measured

Written by `make torture` (`python -m benchmarks.torture`); do not edit. The trials run the real
stages on a tiny world, with a checkpoint at each step, where a default run writes one every 30
seconds. A part of them is in `make test` (`tests/integration/test_torture.py`).

| what is tried | held | of | planned | commit | stock |
|---|--:|--:|--:|---|---|
{rows}

{remarks}

{STOCK_NOTE}

Runs: {"; ".join(runs)}.

{NOT_MEASURED}

{WHAT_HAPPENS}
""",
        encoding="utf-8",
    )


def _row(row: Row, result: Mapping[str, Any] | None) -> str:
    asked = row.trials * row.stages
    if result is None or not result["tried"]:
        return f"| {row.title} | not run | | {asked} | | {row.stock} |"
    counts = f"{result['held']} | {result['tried']} | {asked} | `{result['commit']}`"
    return f"| {row.title} | {counts} | {row.stock} |"


def _remarks(row: Row, result: Mapping[str, Any]) -> list[str]:
    """What was counted beside, and each trial that did not hold."""
    what = row.title.partition(":")[0].partition(";")[0]
    lines = [f"- {what}: {result['remark']}."] if result["remark"] else []
    return lines + [f"- **Did not hold**, {what}: {failure}." for failure in result["failures"]]


def _run(result: Mapping[str, Any]) -> str:
    return f"seed {result['seed']}, {result['machine']}"
