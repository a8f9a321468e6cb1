"""Checkpoints: what goes in comes out to the bit, and what is damaged is never used."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlhf import manifests
from rlhf.checkpoints import (
    KEPT,
    checkpoints,
    load_newest,
    random_states,
    restore_random_states,
    save_checkpoint,
)


def state(step: int) -> dict[str, object]:
    return {"weights": torch.full((3,), float(step)), "step": step}


def saved_steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints(folder)]


def test_everything_comes_back_with_its_type_and_its_bits(tmp_path: Path):
    tied = torch.randn(4, 3)
    tensors = {
        "tied": tied,
        "also tied": tied,
        "row of it": tied[1],
        "transposed": tied.T,
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0),
        "half": torch.randn(5).to(torch.bfloat16),
        "whole numbers": torch.tensor([2**40, -1]),
        "not a number": torch.tensor([math.nan, -math.inf, -0.0]),
    }
    rest = {
        "optimiser": {0: {"step": 3}, 1: {"step": 4}},
        "betas": (0.9, 0.1 + 0.2),
        "list": [1, 1.0, True, None, "naïve 猫", []],
        "beyond": math.inf,
    }
    save_checkpoint(tmp_path, 5, {"tensors": tensors, "rest": rest}, {})
    found, skipped = load_newest(tmp_path)

    assert skipped == []
    assert found is not None
    assert found.step == 5
    assert found.state["rest"] == rest
    assert [type(value) for value in found.state["rest"]["list"]] == [
        int, float, bool, type(None), str, list,
    ]  # fmt: skip
    assert found.state["tensors"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = found.state["tensors"][name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape), name
        bits = [t.reshape(-1).contiguous().view(torch.uint8) for t in (back, tensor)]
        assert torch.equal(*bits), name


def test_tied_weights_are_stored_once(tmp_path: Path):
    weight = torch.randn(100, 100)
    single = save_checkpoint(tmp_path / "one", 0, {"a": weight}, {})
    double = save_checkpoint(tmp_path / "two", 0, {"a": weight, "b": weight}, {})

    sizes = [(path / "tensors.safetensors").stat().st_size for path in (single, double)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("value", [{1, 2}, print, object(), b"bytes", Path("x")])
def test_what_json_and_safetensors_cannot_hold_is_refused(tmp_path: Path, value: object):
    with pytest.raises(TypeError, match=type(value).__name__):
        save_checkpoint(tmp_path, 0, {"value": value}, {})

    assert checkpoints(tmp_path) == []


def test_a_checkpoint_is_tensors_json_and_a_manifest_and_nothing_is_pickled(tmp_path: Path):
    path = save_checkpoint(tmp_path, 12, state(12), {"fingerprint": "abc", "inputs": {"x": "1"}})

    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json", "state.json", "tensors.safetensors",
    ]  # fmt: skip
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 12
    assert (manifest["fingerprint"], manifest["inputs"]) == ("abc", {"x": "1"})
    assert manifest["files"].keys() == {"state.json", "tensors.safetensors"}


def test_the_newest_are_kept_and_older_ones_go(tmp_path: Path):
    for step in (1, 2, 3, 10, 9):
        save_checkpoint(tmp_path, step, state(step), {})

    assert saved_steps(tmp_path) == [10, 9]
    assert KEPT == 2


def test_damaged_ones_do_not_count_when_older_ones_go(tmp_path: Path):
    save_checkpoint(tmp_path, 1, state(1), {})
    for step in (2, 3):
        path = save_checkpoint(tmp_path, step, state(step), {})
        (path / "state.json").unlink()
    save_checkpoint(tmp_path, 4, state(4), {})

    assert saved_steps(tmp_path) == [4, 3, 2, 1]
    save_checkpoint(tmp_path, 5, state(5), {})
    assert saved_steps(tmp_path) == [5, 4]


def test_a_save_hashes_what_it_has_written_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hashed: list[str] = []

    def noting(path: Path) -> str:
        hashed.append(f"{path.parent.name}/{path.name}")
        return sha256(path)

    sha256 = manifests.sha256
    monkeypatch.setattr(manifests, "sha256", noting)
    for step in (1, 2, 3):
        hashed.clear()
        save_checkpoint(tmp_path, step, state(step), {})
        assert sorted(hashed) == [".staging/state.json", ".staging/tensors.safetensors"]
    assert saved_steps(tmp_path) == [3, 2]


def flip(name: str, position: float) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        content = bytearray((checkpoint / name).read_bytes())
        content[int(position * (len(content) - 1))] ^= 4
        (checkpoint / name).write_bytes(content)

    return damage


def cut(checkpoint: Path) -> None:
    path = checkpoint / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def zero(checkpoint: Path) -> None:
    path = checkpoint / "tensors.safetensors"
    path.write_bytes(bytes(path.stat().st_size))


def swap(checkpoint: Path) -> None:
    """The weights of another step: sound files, in the wrong place."""
    older = checkpoint.with_name("step-00000001")
    shutil.copy(older / "tensors.safetensors", checkpoint)


def pretend(checkpoint: Path) -> None:
    """An older checkpoint under a newer name."""
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.with_name("step-00000001"), checkpoint)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bit of the weights": (
        flip("tensors.safetensors", 0.99),
        "tensors.safetensors: expected sha",
    ),
    "a bit of the header": (flip("tensors.safetensors", 0.1), "tensors.safetensors: expected sha"),
    "a bit of the state": (flip("state.json", 0.5), "state.json: expected sha256"),
    "a bit of the manifest": (flip("manifest.json", 0.0), "manifest.json: cannot be read"),
    "cut": (cut, "tensors.safetensors: expected"),
    "zeros": (zero, "tensors.safetensors: expected sha256"),
    "no weights": (lambda c: (c / "tensors.safetensors").unlink(), "tensors.safetensors: missing"),
    "no state": (lambda c: (c / "state.json").unlink(), "state.json: missing"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json: expected a manifest"),
    "empty manifest": (lambda c: (c / "manifest.json").write_text("{}"), "manifest.json: cannot"),
    "something more": (lambda c: (c / "evil.pkl").write_text("x"), "evil.pkl: its manifest does"),
    "swapped weights": (swap, "tensors.safetensors: expected sha256"),
    "under a newer name": (pretend, "manifest.json: describes step 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path, damage: str):
    spoil, message = DAMAGES[damage]
    save_checkpoint(tmp_path, 1, state(1), {})
    spoil(save_checkpoint(tmp_path, 2, state(2), {}))

    found, skipped = load_newest(tmp_path)

    assert found is not None
    assert found.step == 1
    assert found.state["weights"].tolist() == [1.0, 1.0, 1.0]
    assert len(skipped) == 1
    assert "step-00000002/" in skipped[0]
    assert message in skipped[0]
    # Once the training comes there again, the damaged one is replaced.
    save_checkpoint(tmp_path, 2, state(2), {})
    found, skipped = load_newest(tmp_path)
    assert (found is not None and found.step, skipped) == (2, [])


def test_where_none_is_whole_there_is_none_and_all_are_named(tmp_path: Path):
    for step in (1, 2):
        cut(save_checkpoint(tmp_path, step, state(step), {}))

    found, skipped = load_newest(tmp_path)

    assert found is None
    assert len(skipped) == 2
    assert load_newest(tmp_path / "nothing") == (None, [])


def test_what_a_killed_save_left_is_not_seen_and_does_not_disturb(tmp_path: Path):
    save_checkpoint(tmp_path, 1, state(1), {})
    whole = save_checkpoint(tmp_path, 2, state(2), {})
    whole.rename(tmp_path / ".staging")
    (tmp_path / ".staging" / "manifest.json").unlink()

    found, skipped = load_newest(tmp_path)
    assert (found is not None and found.step, skipped) == (1, [])
    save_checkpoint(tmp_path, 2, state(2), {})
    assert saved_steps(tmp_path) == [2, 1]
    assert not (tmp_path / ".staging").exists()


def test_the_global_generators_go_on_where_they_were():
    import random

    torch.manual_seed(5)
    random.seed(5)
    states = random_states()
    first = (torch.rand(3).tolist(), random.random())
    restore_random_states(states)

    assert (torch.rand(3).tolist(), random.random()) == first


def test_whoever_computes_on_the_cpu_leaves_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may have filled them, and they may be gone when the training is resumed."""

    def full(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")

    for name in ("get_rng_state_all", "set_rng_state_all"):
        monkeypatch.setattr(torch.cuda, name, full)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    states = random_states()
    assert states["cuda"] == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    restore_random_states(states | {"cuda": [torch.get_rng_state()]})
