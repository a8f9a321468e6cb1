"""The rows of the page: what is claimed, how often it is tried, and what stock does."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.torture import (
    conductor,
    cost,
    damage,
    disks,
    kills,
    members,
    orchestrators,
    security,
    trackers,
)
from benchmarks.torture.world import Count, World


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    make: Callable[[World, int], Count]
    """Makes the trials."""
    title: str
    trials: int
    """Trials of the whole `make torture`."""
    stock: str
    stages: int = 1
    """Stages that each have so many trials."""


ROWS = {
    "random_kills": Row(
        kills.random_kills,
        "kill -9 at a random moment of base, SFT, reward and PPO; the same command again; "
        "same bytes as uninterrupted", 15,
        "HF Trainer resumes to the same bits where the kill misses a save (6 of 6)", 4,
    ),
    "commit_kills": Row(
        kills.commit_kills,
        "kill -9 while each of the four writes a checkpoint or an output; "
        "same command, same bytes", 10,
        "HF Trainer: 0 of 4 resume (no valid checkpoint found; the older good one is ignored)", 4,
    ),
    "killed_orchestrators": Row(
        orchestrators.killed_orchestrators,
        "kill -9 of `dvc repro`, `make repro` or `make flow` at a random moment; at once the same "
        "command again; same bytes and dvc.lock, no manual step, no orphan after ten seconds", 12,
        "dvc killed: its stage lives on and writes, and the next repro is refused (\"is busy\") or "
        "writes beside it",
    ),
    "killed_members": Row(
        members.killed_members,
        "kill -9 of any one process of `make repro` at a random moment: the driver, DVC, a stage's "
        "process, the fork server, a fork; at once the same command again; same bytes and "
        "dvc.lock, no manual step, no orphan after ten seconds", 40,
        "-",
    ),
    "identical_locks": Row(
        orchestrators.identical_locks,
        "two complete runs and one killed in every training stage: identical dvc.lock", 3,
        "-",
    ),
    "damaged_checkpoints": Row(
        damage.damaged_checkpoints,
        "damaged checkpoint: detected, named, the one before it used", 20,
        "a flipped bit loads silently, in safetensors and in torch.save (0 of 2 detected)",
    ),
    "damaged_models": Row(
        damage.damaged_models,
        "damaged model among a stage's inputs: refused with exit 2, nothing touched", 20,
        "dvc checkout hands the damaged bytes out with exit 0",
    ),
    "full_disks": Row(
        disks.full_disks,
        "disk full at a random point: last checkpoint and earlier outputs kept, same bytes once "
        "there is space", 12,
        "HF: half a checkpoint is written, and resuming fails on it although an older one is good",
    ),
    "killed_parents": Row(
        kills.killed_parents,
        "parent of a stage killed: no orphan after ten seconds", 50,
        "dvc killed or terminated: its stage lives on and writes (2 of 2)",
    ),
    "double_starts": Row(
        kills.double_starts,
        "a stage started twice at once: exactly one writer at a time", 50,
        "dvc refuses the second repro; an orphan and a new repro both write",
    ),
    "injected_non_finite": Row(
        damage.injected_non_finite,
        "NaN or infinity put into a weight: stop within a step, exit 3, no such checkpoint", 10,
        "HF Trainer: loss shown as 0.0, exit 0, the NaN is saved",
    ),
    "tracking_away": Row(
        trackers.tracking_away,
        "tracking server down for good: no metric lost or duplicated after `make sync`", 1,
        "asynchronous logging loses 162 of 300 metrics without an exception; synchronous raises "
        "and stalls",
    ),
    "tracking_back": Row(
        trackers.tracking_back,
        "tracking server killed, back after 60 s: no metric lost or duplicated, no step stalled "
        "over a second", 1,
        "none lost; synchronous logging blocks the training for up to 127 s",
    ),
    "prefect_away": Row(
        conductor.prefect_away,
        "Prefect's server killed while the flow runs, back after 90 s: flow and tasks shown as "
        "they ended within three minutes, and the next run of the flow recomputes nothing", 1,
        "all work done, but the flow ends as Failed (ConnectError), and 4 of 8 tasks have no final "
        "state",
    ),
    "fresh_databases": Row(
        trackers.fresh_databases,
        "eight processes at once on a database that does not exist yet: all work", 1,
        "three of four crash (duplicate column name)",
    ),
    "checkpoint_cost": Row(
        cost.checkpoint_cost,
        "checkpoints of the last `make repro` here, with default settings: less than 3 % of each "
        "stage's time", 8,
        "-",
    ),
    "malicious": Row(
        security.malicious,
        "malicious artefacts of ten kinds: none executed", 10,
        "mlflow.pyfunc.load_model runs a pickle by default; a chat template makes 1 GB in 16 s",
    ),
    "canaries": Row(
        security.canaries,
        "secrets in environment and tracking address: none found in logs, records or outputs", 10,
        "training_args.bin holds hub_token in clear",
    ),
}  # fmt: skip
