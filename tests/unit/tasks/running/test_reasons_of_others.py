"""Why a process that is not the first has ended, where the first has no reason of its own."""

from pathlib import Path

import pytest

from rlhf import bits, models
from rlhf.model_folders import ModelFolderError
from tests import forked_stages, stage_world
from tests.several import SFT, outcome


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reasons") / "world"
    stage_world.build(root)
    stage_world.set_params(root, "run", {"processes": 2, "sharded": False})
    return root


def other_bits(rank: int) -> None:
    """As on a host whose processor is an older one."""
    if rank:
        bits._in_effect = "this processor's own" if bits._in_effect == "native" else "native"


def no_folder(rank: int) -> None:
    """As on a host that does not see the others' files."""
    if rank:

        def load(folder: Path, _: object) -> None:
            raise ModelFolderError(f"{folder}: expected a model, found no folder")

        models.load_policy = load  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [(other_bits, "this process began with"), (no_folder, "models/base: expected a model")],
)
def test_the_first_says_why_another_process_has_ended(
    built: Path, prepare: forked_stages.Prepare, reason: str
) -> None:
    stage_world.forget(built, SFT)

    assert forked_stages.run(built, ["tasks.sft"], 2, prepare) == [0, 0]

    assert outcome(built)["status"] == "failed"
    assert reason in outcome(built)["message"]
