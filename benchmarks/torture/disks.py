"""Trials on a small file system that fills up. Needs the right to mount one."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.torture.children import run
from benchmarks.torture.world import EVERY_STEP, Count, World
from rlhf.manifests import DamagedError
from tasks.running.staging import verify_checkpoint
from tests.stage_world import STAGES, checkpoint_paths, digest, forget


def full_disks(world: World, trials: int) -> Count:
    """A small file system that fills up while a stage writes checkpoints or outputs."""
    count, stopped, kept = Count(), 0, 0
    with _small_disk(world.root.parent / "small") as disk:
        world.said()
        root = Path(shutil.copytree(world.root, disk / "world"))
        # As on a terminal, what a stage says does not need room on the disk that is full.
        (root / "log.txt").symlink_to(world.root / "log.txt")
        for number in range(trials):
            stage = STAGES[number % len(STAGES)]
            whole = digest(root, stage)
            others = {other: digest(root, other) for other in STAGES if other != stage}
            forget(root, stage)
            leave = world.chance.randint(20_000, 700_000)
            _fill(disk, leave)
            world.said()
            code = run(root, stage, **EVERY_STEP)
            said = world.said()
            damaged = [line for path in checkpoint_paths(root, stage) if (line := _damage(path))]
            changed = [other for other, before in others.items() if digest(root, other) != before]
            stopped += code != 0
            kept += code != 0 and bool(checkpoint_paths(root, stage))
            (disk / "filler").unlink()
            again = run(root, stage, **EVERY_STEP)
            wrong = {
                f"checkpoints are damaged: {damaged}": bool(damaged),
                f"outputs of {changed} changed": bool(changed),
                f"exit code {code} without saying that the disk is full: {_last(said)}": code != 0
                and "the disk is full" not in said,
                f"exit code {again} once there was room: {_last(world.said())}": again != 0,
                "other bytes once there was room": again == 0 and digest(root, stage) != whole,
            }
            count.add(f"{stage} {number}, {leave} bytes left", wrong)
            if again != 0:
                shutil.copytree(world.root, root, dirs_exist_ok=True)
    count.remark = (
        f"{stopped} ran out of space, {kept} of them after a checkpoint; the others had enough"
    )
    return count


def _fill(disk: Path, leave: int) -> None:
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(max(0, free - leave)))


def _damage(checkpoint: Path) -> str:
    try:
        verify_checkpoint(checkpoint)
    except DamagedError as error:
        return str(error)
    return ""


def _last(said: str) -> str:
    return (said.strip().splitlines() or ["nothing"])[-1]


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 24 MB in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "torture", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
