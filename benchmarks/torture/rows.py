"""The trials, one function a row of the page; each returns how many there were and held."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import (
    commit_events,
    flip_bit,
    fork,
    gone,
    run,
    run_and_kill,
    run_and_kill_in_commit,
    wait,
)
from rlhf.checkpoints import load_newest
from tasks.publishing import verify_checkpoint
from tests import stage_world
from tests.stage_world import STAGES, STEPS, checkpoint_paths, digest, forget

EVERY_STEP = {"RLHF_CHECKPOINT_STEPS": "1"}
INPUT_MODELS = {
    "sft": "models/base",
    "reward@r1": "models/sft",
    "ppo@r1": "models/rounds/r1/reward",
}


@dataclass(frozen=True)
class World:
    """A folder with all stages run once, and what they made."""

    root: Path
    chance: random.Random

    def seconds(self, stage: str) -> float:
        """Duration of an uninterrupted run with a checkpoint at each step."""
        forget(self.root, stage)
        started = time.monotonic()
        assert run(self.root, stage, **EVERY_STEP) == 0
        return time.monotonic() - started

    def said(self) -> str:
        """What the last children wrote; empties the log."""
        path = self.root / "log.txt"
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text


@dataclass(frozen=True)
class Count:
    """Trials, and those that ended as they should."""

    tried: int
    held: int
    remark: str = ""


def random_kills(world: World, trials: int) -> Count:
    """Kill -9 at a random moment of each stage, then the same command again."""
    held = killed = resumed = 0
    for stage in STAGES:
        whole, seconds = digest(world.root, stage), world.seconds(stage)
        for _ in range(trials):
            forget(world.root, stage)
            after = world.chance.uniform(0, seconds)
            killed += run_and_kill(world.root, stage, after, **EVERY_STEP) == -9
            code = run(world.root, stage, **EVERY_STEP)
            resumed += "goes on from its checkpoint" in world.said()
            held += code == 0 and digest(world.root, stage) == whole
    remark = f"{killed} were still running when killed, {resumed} went on from a checkpoint"
    return Count(trials * len(STAGES), held, remark)


def commit_kills(world: World, trials: int) -> Count:
    """Kill -9 right before a flush, rename or removal while a checkpoint or output is written."""
    held = killed = left = 0
    for stage in STAGES:
        whole = digest(world.root, stage)
        forget(world.root, stage)
        events = commit_events(world.root, stage, **EVERY_STEP)
        for _ in range(trials):
            forget(world.root, stage)
            event = world.chance.randint(1, events)
            killed += run_and_kill_in_commit(world.root, stage, event, **EVERY_STEP) == -9
            left += bool(list((world.root / ".work" / stage).glob("*/.staging")))
            code = run(world.root, stage, **EVERY_STEP)
            held += code == 0 and digest(world.root, stage) == whole
    world.said()
    remark = f"{killed} killed themselves, {left} of them left a half-written checkpoint"
    return Count(trials * len(STAGES), held, remark)


def damaged_checkpoints(world: World, trials: int) -> Count:
    """A checkpoint cut, zeroed, with a flipped bit, a missing or a foreign file."""
    forget(world.root, "sft")
    steps = STEPS["sft"]
    child = fork(lambda: _keeping_checkpoints(world.root), world.root / "log.txt")
    wait(child)
    (folder,) = (world.root / ".work/sft").glob("[0-9a-f]*[0-9a-f]")
    held = 0
    for number in range(trials):
        copy = Path(shutil.copytree(folder, world.root / "damaged"))
        newest = sorted(copy.glob("step-*"))[-1]
        _damage(world.chance.choice(sorted(newest.iterdir())), number, world.chance)
        found, skipped = load_newest(copy)
        fell_back = found is not None and found.step < steps and len(skipped) == 1
        held += fell_back and newest.name in skipped[0]
        shutil.rmtree(copy)
    forget(world.root, "sft")
    run(world.root, "sft")
    return Count(trials, held, "each named in one line; the checkpoint before it was used")


def damaged_models(world: World, trials: int) -> Count:
    """The model that a stage reads, damaged in the same ways."""
    held = 0
    for number in range(trials):
        stage = world.chance.choice(sorted(INPUT_MODELS))
        folder = world.root / INPUT_MODELS[stage]
        kept = shutil.copytree(folder, world.root / "kept")
        file = world.chance.choice(sorted(folder.iterdir()))
        _damage(file, number, world.chance)
        before = digest(world.root, stage)
        world.said()
        code = run(world.root, stage)
        said = world.said()
        named = INPUT_MODELS[stage] in said and "dvc checkout --force" in said
        held += code == 2 and named and digest(world.root, stage) == before
        shutil.rmtree(folder)
        shutil.move(kept, folder)
    return Count(trials, held, "exit 2 with path, expected and found; no output touched")


def full_disks(world: World, trials: int) -> Count:
    """A small file system that fills up while a stage writes checkpoints or outputs."""
    held = stopped = 0
    with _small_disk(world.root.parent / "small") as disk:
        root = Path(shutil.copytree(world.root, disk / "world"))
        for number in range(trials):
            stage = STAGES[number % len(STAGES)]
            whole = digest(root, stage)
            others = {other: digest(root, other) for other in STAGES if other != stage}
            forget(root, stage)
            free = shutil.disk_usage(disk).free
            leave = world.chance.randint(20_000, 700_000)
            (disk / "filler").write_bytes(bytes(max(0, free - leave)))
            small = World(root, world.chance)
            code = run(root, stage, **EVERY_STEP)
            good = all(_sound(path) for path in checkpoint_paths(root, stage))
            full = "the disk is full" in small.said() or code == 0
            stopped += code != 0
            kept = all(digest(root, other) == value for other, value in others.items())
            (disk / "filler").unlink()
            again = run(root, stage, **EVERY_STEP)
            held += good and full and kept and again == 0 and digest(root, stage) == whole
            small.said()
    return Count(trials, held, f"{stopped} ran out of room; all ended with equal hashes afterwards")


def killed_parents(world: World, trials: int) -> Count:
    """The process that started a stage dies (-9) at a random moment; is the stage gone in 10 s?"""
    held, seconds, longest = 0, world.seconds("base"), 0.0
    for _ in range(trials):
        forget(world.root, "base")
        note = world.root / "stage.pid"
        note.unlink(missing_ok=True)
        parent = fork(lambda note=note: _start_and_wait(world.root, note), world.root / "log.txt")
        while not (note.exists() and note.read_text()):
            time.sleep(0.002)
        time.sleep(world.chance.uniform(0, seconds))
        child = int(note.read_text())
        os.kill(parent, signal.SIGKILL)
        wait(parent)
        died = time.monotonic()
        while not gone(child) and time.monotonic() - died < 60:
            time.sleep(0.01)
        took = time.monotonic() - died
        longest = max(longest, took)
        held += took < 10
    world.said()
    forget(world.root, "base")
    run(world.root, "base")
    return Count(trials, held, f"the last one was gone after {longest:.1f} s")


def double_starts(world: World, trials: int) -> Count:
    """The same stage started twice at once."""
    held = 0
    whole = digest(world.root, "base")
    for _ in range(trials):
        forget(world.root, "base")
        order = world.root / "order.txt"
        order.unlink(missing_ok=True)
        log = world.root / "log.txt"
        pair = [fork(lambda: _noting_turns(world.root), log) for _ in range(2)]
        codes = [wait(child) for child in pair]
        turns = order.read_text().split()
        alone = turns in (["begin", "end"] * 2, ["begin", "end"])
        held += alone and codes == [0, 0] and digest(world.root, "base") == whole
    world.said()
    return Count(trials, held, "one writes, the other waits for it")


def planted_non_finite(world: World, trials: int) -> Count:
    """NaN or infinity in a weight of the model in training, after a random step."""
    held = 0
    for number in range(trials):
        stage = STAGES[number % len(STAGES)]
        step = world.chance.randint(2, STEPS[stage] - 1)
        value = world.chance.choice([float("nan"), float("inf"), float("-inf")])
        before = {other: digest(world.root, other) for other in STAGES if other != stage}
        whole = digest(world.root, stage)
        forget(world.root, stage)
        child = fork(
            lambda stage=stage, step=step, value=value: _planting(world.root, stage, step, value),
            world.root / "log.txt",
        )
        code = wait(child)
        last = checkpoint_paths(world.root, stage)[0].name
        stopped = code == 3 and last == f"step-{step - 1:08d}"
        kept = all(digest(world.root, other) == value for other, value in before.items())
        forget(world.root, stage)
        again = run(world.root, stage) == 0 and digest(world.root, stage) == whole
        held += stopped and kept and again
    world.said()
    return Count(trials, held, "exit 3 at that step; the checkpoint before it is the last one")


def _damage(path: Path, number: int, chance: random.Random) -> None:
    match number % 5:
        case 0 | 1:
            flip_bit(path, chance)
        case 2:
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
        case 3:
            path.unlink()
        case 4:
            path.write_bytes(bytes(path.stat().st_size))


def _sound(path: Path) -> bool:
    verify_checkpoint(path)
    return True


def _keeping_checkpoints(root: Path) -> int:
    """Run SFT and end without removing its checkpoints, as a kill after the last step would."""
    from tasks.stage import Stage  # noqa: PLC0415

    Stage.publish = lambda _: os._exit(0)  # type: ignore[method-assign]
    return stage_world.run(root, "sft", **EVERY_STEP)


def _noting_turns(root: Path) -> int:
    from tasks.stage import Stage  # noqa: PLC0415

    def noting(word: str, function: Callable[[Stage], None]) -> Callable[[Stage], None]:
        def noted(stage: Stage) -> None:
            if word == "end":
                function(stage)
            with (root / "order.txt").open("a") as order:
                order.write(f"{word}\n")
            if word == "begin":
                function(stage)

        return noted

    Stage.begin = noting("begin", Stage.begin)  # type: ignore[method-assign]
    Stage.publish = noting("end", Stage.publish)  # type: ignore[method-assign]
    return stage_world.run(root, "base")


def _start_and_wait(root: Path, note: Path) -> int:
    """Be the parent of a stage, as DVC is."""
    environment = {**EVERY_STEP, "DVC_STAGE": "base"}
    child = fork(lambda: stage_world.run(root, "base", **environment), root / "log.txt")
    note.write_text(str(child))
    return wait(child)


def _planting(root: Path, stage: str, step: int, value: float) -> int:
    from rlhf.optimisers import Optimiser  # noqa: PLC0415
    from tasks.stage import Stage  # noqa: PLC0415

    made: list[Optimiser] = []
    init, log = Optimiser.__init__, Stage.log

    def note(self: Optimiser, *arguments: object) -> None:
        init(self, *arguments)  # type: ignore[arg-type]
        made.append(self)

    def log_and_plant(self: Stage, now: int, metrics: dict[str, float]) -> None:
        log(self, now, metrics)
        if now == step:
            made[0].weights[0].data.view(-1)[0] = value

    Optimiser.__init__ = note  # type: ignore[method-assign]
    Stage.log = log_and_plant  # type: ignore[method-assign,assignment]
    return stage_world.run(root, stage, **EVERY_STEP)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 24 MB in memory. Needs the right to mount one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "torture", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
