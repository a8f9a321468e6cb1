"""Trials in which a stage, or who started it, is killed, or started twice."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.torture.children import (
    commit_events,
    fork,
    gone,
    run,
    run_and_kill,
    run_and_kill_in_commit,
    wait,
)
from benchmarks.torture.world import EVERY_STEP, Count, World
from tests import stage_world
from tests.stage_world import STAGES, digest, forget

ORPHAN_SECONDS = 10


def random_kills(world: World, trials: int) -> Count:
    """Kill -9 at a random moment of each stage, then the same command again."""
    count, killed, resumed = Count(), 0, 0
    for stage in STAGES:
        whole, seconds = digest(world.root, stage), world.seconds(stage)
        for number in range(trials):
            forget(world.root, stage)
            after = world.chance.uniform(0, seconds)
            killed += run_and_kill(world.root, stage, after, **EVERY_STEP) == -9
            code = run(world.root, stage, **EVERY_STEP)
            resumed += "resumes from its checkpoint" in world.said()
            count.add(
                f"{stage} {number}, killed after {after:.2f} s", _ended(world, stage, code, whole)
            )
    count.remark = f"{killed} were still running when killed, {resumed} resumed from a checkpoint"
    return count


def commit_kills(world: World, trials: int) -> Count:
    """Kill -9 right before a flush, rename or removal while a checkpoint or output is written."""
    count, killed, left = Count(), 0, 0
    for stage in STAGES:
        whole = digest(world.root, stage)
        forget(world.root, stage)
        events = commit_events(world.root, stage, **EVERY_STEP)
        for number in range(trials):
            forget(world.root, stage)
            event = world.chance.randint(1, events)
            killed += run_and_kill_in_commit(world.root, stage, event, **EVERY_STEP) == -9
            left += bool(list((world.root / ".work" / stage).glob("*/.staging")))
            code = run(world.root, stage, **EVERY_STEP)
            count.add(
                f"{stage} {number}, killed at event {event} of {events}",
                _ended(world, stage, code, whole),
            )
    world.said()
    count.remark = f"{killed} killed themselves, {left} of them left a half-written checkpoint"
    return count


def killed_parents(world: World, trials: int) -> Count:
    """The process that started a stage dies (-9) at a random moment; is the stage gone in 10 s?"""
    count, seconds, longest = Count(), world.seconds("base"), 0.0
    for number in range(trials):
        forget(world.root, "base")
        note = world.root / "stage.pid"
        note.unlink(missing_ok=True)
        parent = fork(lambda note=note: _start_and_wait(world.root, note), world.root / "log.txt")
        while not (note.exists() and note.read_text()):
            time.sleep(0.002)
        after = world.chance.uniform(0, seconds)
        time.sleep(after)
        child = int(note.read_text())
        os.kill(parent, signal.SIGKILL)
        wait(parent)
        died = time.monotonic()
        while not gone(child) and time.monotonic() - died < 60:
            time.sleep(0.01)
        took = time.monotonic() - died
        longest = max(longest, took)
        count.add(
            f"trial {number}, parent killed after {after:.2f} s",
            {f"the stage lived {took:.1f} s longer": took >= ORPHAN_SECONDS},
        )
    world.said()
    forget(world.root, "base")
    run(world.root, "base")
    count.remark = f"the last one was gone after {longest:.1f} s"
    return count


def double_starts(world: World, trials: int) -> Count:
    """The same stage started twice at once."""
    count, after_each_other = Count(), 0
    whole = digest(world.root, "base")
    for number in range(trials):
        forget(world.root, "base")
        order = world.root / "order.txt"
        order.unlink(missing_ok=True)
        log = world.root / "log.txt"
        pair = [fork(lambda: _noting_turns(world.root), log) for _ in range(2)]
        codes = [wait(child) for child in pair]
        turns = order.read_text().split()
        after_each_other += turns == ["begin", "end"] * 2
        wrong = {
            f"turns were {turns}": turns not in (["begin", "end"] * 2, ["begin", "end"]),
            f"exit codes were {codes}": codes != [0, 0],
            "other bytes": digest(world.root, "base") != whole,
        }
        count.add(f"trial {number}", wrong)
    world.said()
    count.remark = f"in {after_each_other} the second waited for the first, then wrote"
    return count


def _ended(world: World, stage: str, code: int, whole: str) -> dict[str, bool]:
    """What must not be after the second run."""
    return {
        f"exit code {code}": code != 0,
        "other bytes": code == 0 and digest(world.root, stage) != whole,
    }


def _noting_turns(root: Path) -> int:
    from tasks.running.stage import Stage  # noqa: PLC0415

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
