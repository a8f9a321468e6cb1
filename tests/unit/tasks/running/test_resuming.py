"""The real training stages, interrupted and started again: the same bytes, and said in one line."""

import errno
import functools
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rlhf.optimisers import Optimiser
from tasks.running import environment, resuming, runner
from tasks.running.stage import Stage
from tests import stage_world
from tests.stage_world import STAGES, checkpoint_paths, digest, forget, interrupt_at, run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stages") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A SIGTERM to this process as soon as a stage has logged the step."""
    return functools.partial(interrupt_at, monkeypatch)


def outcome(root: Path, stage: str) -> dict[str, Any]:
    return json.loads((root / ".work" / stage / "outcome.json").read_text())


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_stage_resumes_at_its_step_and_ends_with_the_same_bytes(
    world: Path, stage: str, interrupt: Callable[[int], None], monkeypatch, caplog, capfd
):
    whole = digest(world, stage)
    forget(world, stage)
    interrupt(2)

    assert run(world, stage) == 143
    assert digest(world, stage) == ""
    assert outcome(world, stage)["status"] == "interrupted"
    assert [path.name for path in checkpoint_paths(world, stage)] == ["step-00000002"]

    monkeypatch.undo()
    caplog.set_level("INFO")
    assert run(world, stage) == 0
    assert f"{stage} resumes from its checkpoint at step 2" in caplog.messages
    assert digest(world, stage) == whole
    assert not list((world / ".work" / stage).glob("*/.staging"))


def test_a_checkpoint_after_a_sigterm_may_take_as_long_as_it_needs(
    world: Path, interrupt: Callable[[int], None], monkeypatch
):
    """What may be given up after eight seconds is the step before it."""
    left: list[float] = []
    save = resuming.save_checkpoint

    def watched(*arguments: Any) -> None:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        save(*arguments)

    monkeypatch.setattr(resuming, "save_checkpoint", watched)
    forget(world, "sft")
    interrupt(2)
    assert run(world, "sft") == 143
    assert left == [0.0]


def test_a_resumed_run_logs_every_step_once(world: Path, interrupt, monkeypatch):
    forget(world, "sft")
    interrupt(3)
    run(world, "sft")
    monkeypatch.undo()
    run(world, "sft")

    (spool,) = (world / ".work/spool/sft").iterdir()
    rows = [json.loads(line) for line in (spool / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, stage_world.STEPS["sft"] + 1))


def test_checkpoints_on_the_way_change_no_byte(world: Path):
    whole = digest(world, "sft")
    forget(world, "sft")

    assert run(world, "sft", RLHF_CHECKPOINT_SECONDS="0") == 0
    assert digest(world, "sft") == whole


@pytest.mark.parametrize(("long", "written"), [(math.inf, False), (0.0, True)])
def test_a_step_that_could_not_end_in_time_is_in_a_checkpoint_once_it_is_finished(
    world: Path, monkeypatch, long: float, written: bool
):
    """The steps of this world take milliseconds: what counts as long is set instead."""
    monkeypatch.setattr(resuming, "LONG_STEP_SECONDS", long)
    forget(world, "sft")

    assert run(world, "sft") == 0
    assert (outcome(world, "sft")["checkpoints"] != 0) == written


def test_a_damaged_checkpoint_is_left_out_and_the_one_before_it_used(
    world: Path, interrupt, monkeypatch, caplog
):
    whole = digest(world, "sft")
    forget(world, "sft")
    interrupt(4)
    run(world, "sft", RLHF_CHECKPOINT_STEPS="1")
    monkeypatch.undo()
    newest, older = checkpoint_paths(world, "sft")
    weights = bytearray((newest / "tensors.safetensors").read_bytes())
    weights[-9] ^= 1
    (newest / "tensors.safetensors").write_bytes(weights)
    caplog.set_level("INFO")

    assert run(world, "sft") == 0
    assert any("sft: damaged checkpoint skipped" in m and newest.name in m for m in caplog.messages)
    assert older.name == "step-00000003"
    assert "sft resumes from its checkpoint at step 3" in caplog.messages
    assert digest(world, "sft") == whole


def change_params(root: Path) -> str:
    yaml = YAML()
    params = yaml.load(root / "params.yaml")
    params["sft"]["optimiser"]["warmup_steps"] = 7
    yaml.dump(params, root / "params.yaml")
    return "params sft.optimiser.warmup_steps (30, now 7)"


def change_data(root: Path) -> str:
    path = root / "data/prepared/demonstrations.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return "inputs data/prepared"


def change_code(root: Path) -> str:
    (root / "rlhf/sft.py").write_text("# another loss")
    return "code rlhf/sft.py"


@pytest.mark.parametrize("change", [change_params, change_data, change_code])
def test_a_run_that_is_defined_otherwise_starts_afresh_and_says_what_differs(
    world: Path, change, interrupt, monkeypatch, caplog
):
    root = world
    (root / "rlhf").mkdir()
    shutil.copy(stage_world.ROOT / "rlhf/sft.py", root / "rlhf")
    shutil.copy(stage_world.ROOT / "dvc.yaml", root)
    forget(root, "sft")
    interrupt(2)
    run(root, "sft")
    monkeypatch.undo()
    difference = change(root)

    assert run(root, "sft") == 0
    (line,) = [message for message in caplog.messages if "starts from the beginning" in message]
    assert line.startswith("sft: the checkpoint of step 2 belongs to a run with other inputs")
    assert line.endswith(f"Differences: {difference}")
    resumed = digest(root, "sft")
    forget(root, "sft")
    run(root, "sft")
    assert digest(root, "sft") == resumed


def test_a_checkpoint_of_another_processor_is_resumed_with_portable_bits(
    world: Path, interrupt, monkeypatch, tmp_path: Path, caplog
):
    whole = digest(world, "sft")
    forget(world, "sft")
    interrupt(2)
    run(world, "sft")
    monkeypatch.undo()
    (tmp_path / "cpuinfo").write_text("model name\t: Another\ncpu family\t: 6\nmodel\t\t: 60\n\n")
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "cpuinfo")
    caplog.set_level("INFO")

    assert run(world, "sft") == 0

    assert "sft resumes from its checkpoint at step 2" in caplog.messages
    assert outcome(world, "sft")["environment"]["processor"] == "Another (family 6, model 60)"
    assert digest(world, "sft") == whole


# --- Training that must not go on ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "injected"),
    [("base", math.nan), ("sft", math.inf), ("reward@r1", -math.inf), ("ppo@r1", math.nan)],
)
def test_a_weight_that_is_no_number_ends_training_at_that_step_and_no_checkpoint_gets_it(
    world: Path, stage: str, injected: float, monkeypatch
):
    """Injected once step 2 has been logged: the good checkpoint is that of step 1."""
    forget(world, stage)
    optimisers: list[Optimiser] = []
    init, log = Optimiser.__init__, Stage.log

    def note(self: Optimiser, *arguments: object) -> None:
        init(self, *arguments)
        optimisers.append(self)

    def log_and_plant(self: Stage, step: int, metrics: dict[str, float]) -> None:
        log(self, step, metrics)
        if step == 2:
            optimisers[0].weights[0].data.view(-1)[0] = injected

    monkeypatch.setattr(Optimiser, "__init__", note)
    monkeypatch.setattr(Stage, "log", log_and_plant)

    assert run(world, stage, RLHF_CHECKPOINT_STEPS="1") == 3
    assert outcome(world, stage)["status"] == "stopped"
    said = str(outcome(world, stage)["message"])
    assert "a lower learning rate" in said
    assert "step-00000001" in said
    assert digest(world, stage) == ""
    assert [path.name for path in checkpoint_paths(world, stage)] == ["step-00000001"]


def test_a_disk_without_room_for_the_outcome_leaves_no_note_of_a_kill(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Whoever finds such a note says that the memory ran out."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(world))

    monkeypatch.setattr(runner, "write_outcome", full)
    forget(world, "sft")
    assert run(world, "sft") == 1
    assert f"sft: {world}: the disk is full" in capfd.readouterr().err
    assert not (world / ".work/sft/running.json").exists()
