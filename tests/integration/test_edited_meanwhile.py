"""What is edited while a stage runs: no false word in dvc.lock, and nothing trained is lost.

The repository is copied and made tiny; `base` trains under a real `dvc repro`, with a checkpoint
after each step, and params, code, data or the commit change once the first one is there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.running.provenance import false_entries
from tests.integration.tiny_checkout import World
from tests.paused import paused
from tests.stage_world import STEPS, copy_repository, environment, make_tiny
from tests.waiting import eventually

pytestmark = pytest.mark.long

PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A commit with data that is prepared, and a branch `other` with another learning rate."""
    folder = tmp_path_factory.mktemp("meanwhile")
    world = World(folder / "main", environment(folder))
    copy_repository(world.root, without=("tests/", "docs/"))
    yaml = YAML()
    params = yaml.load(world.root / "params.yaml")
    make_tiny(params, rounds=2)
    yaml.dump(params, world.root / "params.yaml")
    world.git("init", "--quiet", "--initial-branch=main")
    world.dvc("repro", "prepare")
    world.git("add", "--all")
    world.git("commit", "--quiet", "-m", "tiny")
    world.git("checkout", "--quiet", "-b", "other")
    set_lr(world, 0.03)
    world.git("commit", "--quiet", "-a", "-m", "another learning rate")
    world.git("checkout", "--quiet", "main")
    return world


@pytest.fixture
def world(template: World, tmp_path: Path) -> World:
    return World(Path(shutil.copytree(template.root, tmp_path / "main")), template.environment)


def set_lr(world: World, value: float) -> None:
    yaml = YAML()
    params = yaml.load(world.root / "params.yaml")
    params["base"]["embedded"]["optimiser"]["lr"] = value
    yaml.dump(params, world.root / "params.yaml")


def append(world: World, name: str, text: str) -> None:
    with (world.root / name).open("a", encoding="utf-8") as file:
        file.write(text)


EDITS: dict[str, tuple[Callable[[World], object], list[str]]] = {
    "params": (
        lambda world: set_lr(world, 0.03),
        ["params.yaml: base.embedded.optimiser.lr (0.005, now 0.03)"],
    ),
    "code": (
        lambda world: append(world, "rlhf/pretrain.py", "# A remark.\n"),
        ["rlhf/pretrain.py (md5 "],
    ),
    "data": (
        lambda world: append(world, "data/prepared/corpus.jsonl", '{"text": "One more."}\n'),
        ["data/prepared (md5 "],
    ),
    "commit": (
        lambda world: world.git("checkout", "--quiet", "other"),
        ["base.embedded.optimiser.lr (0.005, now 0.03)", "git HEAD moved from "],
    ),
}


def repro_and_edit(world: World, edit: Callable[[World], object]) -> tuple[int, str]:
    """Exit code and log of a `dvc repro` of `base`, with an edit after its first checkpoint."""
    return run_and_edit(world, edit, "dvc", "repro", "--single-item", "base")


def run_and_edit(world: World, edit: Callable[[World], object], *module: str) -> tuple[int, str]:
    with paused(world.root.parent / "paused") as environment:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=world.root,
            env=world.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        eventually(lambda: process.poll() is not None or checkpoints(world))
        edit(world)
    log, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, log


def checkpoints(world: World) -> list[Path]:
    return list(world.root.glob(".work/base/*/step-*"))


def run_cache(world: World) -> set[Path]:
    return set((world.root / ".dvc/cache/runs").glob("*/*/*"))


def locked(world: World, stage: str = "base") -> Any:
    lock = YAML(typ="safe").load(world.root / "dvc.lock")
    return lock["stages"].get(stage)


def tracked(world: World) -> dict[str, bytes]:
    names = ("params.yaml", "rlhf/pretrain.py", "data/prepared/corpus.jsonl")
    return {name: (world.root / name).read_bytes() for name in names}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_while_a_stage_runs_fails_it_and_is_recorded_nowhere(world: World, kind: str):
    edit, words = EDITS[kind]
    before, lock, runs = tracked(world), (world.root / "dvc.lock").read_bytes(), run_cache(world)

    code, log = repro_and_edit(world, edit)

    outcome = world.json(".work/base/outcome.json")
    assert code == 255, log
    assert (outcome["status"], outcome["code"]) == ("bad_input", 2)
    for word in words:
        assert word in outcome["message"]
    assert "Traceback" not in log
    assert (world.root / "dvc.lock").read_bytes() == lock
    assert run_cache(world) == runs
    assert not (world.root / "models/base").exists()
    assert checkpoints(world)

    if kind == "commit":
        world.git("checkout", "--quiet", "main")
    for name, content in before.items():
        (world.root / name).write_bytes(content)
    log = world.dvc("repro", "--single-item", "base")

    assert f"from its checkpoint at step {STEPS['base']}" in log
    recorded = locked(world)["params"]["params.yaml"]["base"]["embedded"]
    assert recorded["optimiser"]["lr"] == 0.005
    assert false_entries(world.root) == []


def test_a_run_with_what_is_edited_starts_from_the_beginning(world: World):
    assert repro_and_edit(world, lambda world: set_lr(world, 0.03))[0] == 255

    log = world.dvc("repro", "--single-item", "base")

    assert "starts from the beginning. Differences: params base.embedded.optimiser.lr" in log
    recorded = locked(world)["params"]["params.yaml"]["base"]["embedded"]
    assert recorded["optimiser"]["lr"] == 0.03


def test_an_edit_that_concerns_other_stages_does_no_harm(world: World):
    text = (world.root / "params.yaml").read_text().replace("kl_coef: 0.04", "kl_coef: 0.06")

    code, log = repro_and_edit(world, lambda w: (w.root / "params.yaml").write_text(text))

    assert code == 0, log
    assert locked(world) is not None


def test_a_stage_started_without_dvc_fails_in_the_same_way(world: World):
    code, said = run_and_edit(world, lambda world: set_lr(world, 0.03), "tasks.base")

    assert code == 2, said
    assert "params.yaml: base.embedded.optimiser.lr (0.005, now 0.03)" in said
    assert not (world.root / "models/base").exists()


def test_a_definition_that_dvc_read_before_it_was_edited_is_refused_at_the_start(world: World):
    """As when `dvc repro` has read dvc.yaml and an edit comes before the stage starts."""
    shell = world.root / "slow-shell"
    edited = "s#^      - rlhf/chat.py$#      - rlhf/__init__.py\\n&#"
    shell.write_text(f"#!/bin/sh\nsed -i '{edited}' dvc.yaml\nexec /bin/sh \"$@\"\n")
    shell.chmod(0o755)
    lock = (world.root / "dvc.lock").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--single-item", "base"],
        cwd=world.root,
        env=world.environment | {"SHELL": os.fspath(shell)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 255
    outcome = world.json(".work/base/outcome.json")
    assert outcome["status"] == "bad_input"
    assert "rlhf/__init__.py" in outcome["message"]
    assert (world.root / "dvc.lock").read_bytes() == lock


def test_an_edit_in_the_instant_before_dvc_records_is_found_and_fixed(world: World):
    """The shell that DVC starts the stage by edits params.yaml once the stage has ended."""
    shell = world.root / "late-shell"
    shell.write_text('#!/bin/sh\n/bin/sh "$@" && sed -i "s/lr: 5e-3/lr: 3e-2/" params.yaml\n')
    shell.chmod(0o755)
    late = World(world.root, world.environment | {"SHELL": os.fspath(shell)})
    late.dvc("repro", "--single-item", "base")
    recorded = locked(world)["params"]["params.yaml"]["base"]["embedded"]["optimiser"]
    assert recorded["lr"] == 0.03
    runs = run_cache(world)

    problem = (
        "base: dvc.lock is wrong about its result: "
        "params.yaml: base.embedded.optimiser.lr (used 0.005, recorded 0.03)"
    )
    doctor = (sys.executable, "-m", "tasks.doctor")
    assert f"left   {problem}" in world.run(*doctor, expect=1)
    assert f"sft: {problem}" in world.run(sys.executable, "-m", "tasks.sft", expect=2)
    said = world.run(*doctor, "--fix", expect=None)

    assert f"fixed  {problem}: removed from dvc.lock and DVC's run cache" in said
    assert locked(world) is None
    assert locked(world, "prepare") is not None
    assert len(run_cache(world)) == len(runs) - 1
    log = world.dvc("repro", "--single-item", "base")
    assert "Running stage 'base'" in log
    assert false_entries(world.root) == []
