"""Trials with damaged files and damaged numbers."""

import os
import random
import shutil
from pathlib import Path

from benchmarks.torture.children import flip_bit, fork, run, wait
from benchmarks.torture.world import EVERY_STEP, Count, World
from rlhf.checkpoints import load_newest
from tests import stage_world
from tests.stage_world import STAGES, STEPS, checkpoint_paths, digest, forget

INPUT_MODELS = {
    "sft": "models/base",
    "reward@r1": "models/sft",
    "ppo@r1": "models/rounds/r1/reward",
}
KINDS = ("bit flipped", "bit flipped", "cut", "missing", "zeros")


def damaged_checkpoints(world: World, trials: int) -> Count:
    """A checkpoint with a flipped bit, cut, zeroed, or without one of its files."""
    forget(world.root, "sft")
    steps = STEPS["sft"]
    wait(fork(lambda: _keeping_checkpoints(world.root), world.root / "log.txt"))
    (folder,) = (world.root / ".work/sft").glob("[0-9a-f]*[0-9a-f]")
    count, files = Count(), set()
    for number in range(trials):
        copy = Path(shutil.copytree(folder, world.root / "damaged"))
        newest = sorted(copy.glob("step-*"))[-1]
        what = _damage(world.chance.choice(sorted(newest.iterdir())), number, world.chance)
        files.add(what.split(": ")[0])
        found, skipped = load_newest(copy)
        wrong = {
            "loaded all the same": found is not None and found.step == steps,
            "no older one was used": found is None,
            f"said {skipped}": len(skipped) != 1 or newest.name not in skipped[0],
        }
        count.add(f"trial {number}, {what}", wrong)
        shutil.rmtree(copy)
    forget(world.root, "sft")
    run(world.root, "sft")
    count.remark = (
        f"in {len(files)} kinds of files; {count.held} named in one line, and the one before used"
    )
    return count


def damaged_models(world: World, trials: int) -> Count:
    """The model that a stage reads, damaged in the same ways."""
    count, manifests = Count(), 0
    for number in range(trials):
        stage = world.chance.choice(sorted(INPUT_MODELS))
        folder = world.root / INPUT_MODELS[stage]
        kept = shutil.copytree(folder, world.root / "kept")
        what = _damage(world.chance.choice(sorted(folder.iterdir())), number, world.chance)
        manifests += what.startswith("manifest.json")
        before = digest(world.root, stage)
        world.said()
        code = run(world.root, stage)
        said = world.said()
        wrong = {
            f"exit code {code}": code != 2,
            "file or remedy not named": INPUT_MODELS[stage] not in said
            or "dvc checkout --force" not in said,
            "no expected and found": "missing" not in what
            and "cannot be read" not in said
            and not ("expected" in said and "found" in said),
            "outputs were touched": digest(world.root, stage) != before,
        }
        count.add(f"{stage} {number}, {INPUT_MODELS[stage]}/{what}", wrong)
        shutil.rmtree(folder)
        shutil.move(kept, folder)
    count.remark = f"{manifests} of them in the manifest itself"
    return count


def injected_non_finite(world: World, trials: int) -> Count:
    """NaN or infinity in a weight of the model in training, after a random step."""
    count = Count()
    for number in range(trials):
        stage = STAGES[number % len(STAGES)]
        step = world.chance.randint(2, STEPS[stage] - 1)
        value = world.chance.choice([float("nan"), float("inf"), float("-inf")])
        others = {other: digest(world.root, other) for other in STAGES if other != stage}
        whole = digest(world.root, stage)
        forget(world.root, stage)
        child = fork(
            lambda stage=stage, step=step, value=value: _planting(world.root, stage, step, value),
            world.root / "log.txt",
        )
        code = wait(child)
        last = [path.name for path in checkpoint_paths(world.root, stage)[:1]]
        changed = [other for other, before in others.items() if digest(world.root, other) != before]
        forget(world.root, stage)
        again = run(world.root, stage)
        wrong = {
            f"exit code {code}": code != 3,
            f"the last checkpoint was {last}": last != [f"step-{step - 1:08d}"],
            f"outputs of {changed} changed": bool(changed),
            f"exit code {again} without it": again != 0,
            "other bytes without it": again == 0 and digest(world.root, stage) != whole,
        }
        count.add(f"{stage} {number}, {value} after step {step}", wrong)
    world.said()
    stopped = f"{count.held} ended with exit 3 at that step"
    count.remark = f"{stopped}, with the checkpoint before it as the last one"
    return count


def _damage(path: Path, number: int, chance: random.Random) -> str:
    """Damage a file in one of the ways and say how."""
    kind = KINDS[number % len(KINDS)]
    match kind:
        case "bit flipped":
            flip_bit(path, chance)
        case "cut":
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
        case "missing":
            path.unlink()
        case "zeros":
            path.write_bytes(bytes(path.stat().st_size))
    return f"{path.name}: {kind}"


def _keeping_checkpoints(root: Path) -> int:
    """Run SFT and end without removing its checkpoints, as a kill after the last step would."""
    from tasks.running.stage import Stage  # noqa: PLC0415

    Stage.publish = lambda _: os._exit(0)  # type: ignore[method-assign]
    return stage_world.run(root, "sft", **EVERY_STEP)


def _planting(root: Path, stage: str, step: int, value: float) -> int:
    from rlhf.optimisers import Optimiser  # noqa: PLC0415
    from tasks.running.stage import Stage  # noqa: PLC0415

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
