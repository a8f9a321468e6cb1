"""`run.stored_precision: bfloat16`: half the disk, and stages that go on from rounded weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf.models import load_policy
from tests import stage_world
from tests.stage_world import run, set_params

pytestmark = pytest.mark.long

FOLDERS = ("models/base", "models/sft", "models/rounds/r1/reward", "models/rounds/r1/policy")
REWARD, POLICY = FOLDERS[2:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored") / "world"
    stage_world.build(root)
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "world"))


def params_of(root: Path, folder: str) -> dict[str, object]:
    manifest = json.loads((root / folder / "manifest.json").read_text())
    found: dict[str, object] = manifest["params"]["run"]
    return found


def stored_bytes(folder: Path) -> int:
    """Of the weights in the folder itself, without an adapter's."""
    return sum(path.stat().st_size for path in folder.glob("model*.safetensors"))


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4}], ids=["all weights", "adapters"])
def test_every_stage_publishes_bfloat16_and_starts_from_it(
    built: Path, world: Path, lora: dict[str, int] | None
) -> None:
    set_params(world, "run", {"stored_precision": "bfloat16"})
    set_params(world, "reward", {"ensemble": 2})
    for section in ("sft", "reward", "ppo"):
        set_params(world, section, {"lora": lora})
    for stage in ("base", "sft"):
        assert run(world, stage) == 0, stage
    stage_world._write_preferences(world)  # Of this SFT: its hash is another now.
    for stage in ("reward@r1", "ppo@r1"):
        assert run(world, stage) == 0, stage
    for folder in (*FOLDERS, f"{REWARD}/member_2"):
        for file in (world / folder).glob("model*.safetensors"):
            assert {weight.dtype for weight in load_file(file).values()} == {torch.bfloat16}
        assert json.loads((world / folder / "config.json").read_text())["dtype"] == "bfloat16"
    for folder in FOLDERS:
        assert stored_bytes(world / folder) < 0.53 * stored_bytes(built / folder)
        assert params_of(world, folder)["stored_precision"] == "bfloat16"
        assert "stored_precision" not in params_of(built, folder)
    if lora is not None:
        trained = ("models/sft", REWARD, f"{REWARD}/member_2", POLICY)
        left_alone = (world / folder / "model-00001-of-00002.safetensors" for folder in trained)
        assert len({path.read_bytes() for path in left_alone}) == 1
    policies = [load_policy(world / folder, torch.device("cpu")) for folder in FOLDERS[::3]]
    for policy in policies:
        assert policy.dtype == torch.float32
    base, policy = (one.model.layers[0].mlp.up_proj.weight for one in policies)
    assert not torch.equal(base, policy)
    history = (world / "results/ppo/r1/history.csv").read_text()
    assert "nan" not in history


def test_what_is_stored_is_what_was_trained_within_a_rounding(built: Path, world: Path) -> None:
    """SFT from the same base, so that the weights before rounding are the default's."""
    set_params(world, "run", {"stored_precision": "bfloat16"})
    assert run(world, "sft") == 0
    trained = load_file(built / "models/sft/model.safetensors")
    stored = load_file(world / "models/sft/model.safetensors")
    assert stored.keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(stored[name], weight.bfloat16())
        assert ((stored[name].float() - weight).abs() <= 2**-8 * weight.abs()).all()
