"""What a process holds of divided tensors that it has read from a checkpoint."""

from itertools import chain
from pathlib import Path

import pytest
import torch

from rlhf import distributed, sft
from rlhf.checkpoints import load_newest, save_checkpoint
from rlhf.divided import Parts, held_as, part
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from tests import tiny
from tests.forked import run_together
from tests.tiny import COMPUTE, PAD
from tests.training_steps import EXAMPLES

ALL_WEIGHTS = sum(weight.numel() for weight in tiny.llama().parameters())


def trained(*, divided: bool, name: str = "adamw") -> Training:
    """After an epoch of SFT, so that every weight has its moments."""
    rate = OptimiserParams(name=name, warmup_steps=0)
    model = tiny.llama()
    held = Held(model, divided=divided)
    training = Training(model, Optimiser(rate, model.named_parameters()), held)
    params = SFTParams(epochs=1, batch_size=3, optimiser=rate)
    list(sft.train(training, EXAMPLES, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)))
    return training


def moment_bytes(optimiser: Optimiser) -> int:
    """Of all memory that its moments are in, the counts of steps included."""
    states = [each["state"].values() for each in optimiser.state_dict().values()]
    moments = chain.from_iterable(state.values() for state in chain(*states))
    storages = [part(moment).untyped_storage() for moment in moments]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("earlier", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_a_process_keeps_as_many_bytes_of_moments_after_it_has_loaded_them(
    tmp_path: Path, earlier: int, name: str
) -> None:
    """Two processes load the checkpoint of one, two or three."""

    def save() -> None:
        training = trained(divided=earlier > 1, name=name)
        save_checkpoint(tmp_path, training.step, training.state_dict(), {})

    def load() -> tuple[int, int]:
        training = trained(divided=True, name=name)
        before = moment_bytes(training.optimiser)
        found, _ = load_newest(tmp_path)
        assert found is not None
        training.load_state_dict(found.state)
        return before, moment_bytes(training.optimiser)

    assert run_together(save, earlier) == [None] * earlier
    for before, after in run_together(load):
        assert after == before
        if name == "adamw":  # 8 bytes for each of its weights, and a count for each tensor.
            assert 0.4 * 8 * ALL_WEIGHTS < before < 0.6 * 8 * ALL_WEIGHTS


def test_of_as_many_parts_a_process_touches_only_its_own() -> None:
    """The others' have no content here."""

    def work() -> list[float]:
        weight = Held(tiny.llama(), divided=True).model.get_input_embeddings().weight
        rows = torch.full_like(part(weight), float(distributed.rank()))
        nothing = rows.to("meta")
        value = Parts((rows, nothing) if distributed.rank() == 0 else (nothing, rows))
        return part(held_as(value, weight)).unique().tolist()

    assert run_together(work) == [[0.0], [1.0]]
