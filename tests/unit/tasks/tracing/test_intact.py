"""Outputs are checked against dvc.lock by hashing alone, in an interpreter without DVC."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traced_world import World, object_path, one_round

ROOT = Path(__file__).resolve().parents[4]
WITHOUT_DVC = """
import sys
for name in ("dvc", "dvc_data", "dvc_objects"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv.pop(1))
from tasks.verify import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two outputs are checked out, the rest is in the cache."""
    world = one_round(tmp_path / "world", "ann")
    for path in ("data/rounds/r1/judgments.jsonl", "models/sft"):
        (world.root / path).parent.mkdir(parents=True, exist_ok=True)
    judgments = world.now["data/rounds/r1/judgments.jsonl"][0]
    shutil.copy(object_path(world.root, judgments), world.root / "data/rounds/r1/judgments.jsonl")
    (world.root / "models/sft").mkdir()
    (world.root / "models/sft/m").write_text("sft ")
    return world


def check(world: World) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DVC, str(ROOT), "--outputs"],
        cwd=world.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


COUNTS = (
    "Of 8 outputs in dvc.lock {} have their bytes here, {} are whole in the cache, {} are wrong"
)


def test_sound_outputs_are_counted_where_they_are(world: World) -> None:
    code, lines = check(world)

    assert (code, lines) == (0, [f"{COUNTS.format(2, 6, 0)} or missing."])


def test_each_way_of_being_wrong_is_named(world: World) -> None:
    (world.root / "models/sft/m").write_text("another")
    policy = world.now["models/rounds/r1/policy"][0]
    object_path(world.root, policy).unlink()
    reward = object_path(world.root, world.now["models/rounds/r1/reward"][0])
    inside = reward.read_text().partition('"md5": "')[2][:32]
    object_path(world.root, inside).write_text("damaged")

    base = object_path(world.root, world.now["models/base"][0])
    lost = base.read_text().partition('"md5": "')[2][:32]
    object_path(world.root, lost).unlink()
    preferences = object_path(world.root, world.now["data/rounds/r1/preferences"][0])
    preferences.write_text(json.dumps(json.loads(preferences.read_text())[1:]))

    code, lines = check(world)

    assert code == 8
    assert [line.partition(" (")[0] for line in lines[:-1]] == [
        "models/base",
        "models/sft",
        "data/rounds/r1/preferences",
        "models/rounds/r1/reward",
        "models/rounds/r1/policy",
    ]
    assert lines[0].endswith(f"missing, and its object {lost} is not in the cache")
    assert world.now["models/sft"][0] in lines[1]
    listed = world.now["data/rounds/r1/preferences"][0].removesuffix(".dir")
    assert lines[2].endswith(f"its object {listed} in the cache is damaged")
    assert f"its object {inside} in the cache is damaged" in lines[3]
    assert lines[4].endswith("missing, here and in the cache")
    assert lines[5].startswith(COUNTS.format(1, 2, 5))
