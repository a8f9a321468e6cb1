"""Two processes that divide a model's weights compute what one does that has them all."""

import errno
import os
import resource
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlhf import distributed, sft
from rlhf.checkpoints import load_newest, save_checkpoint
from rlhf.compute import Compute
from rlhf.divided import part
from rlhf.optimisers import Optimiser, Training
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sft import SFTParams
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from tests import ppo_world, tiny
from tests.forked import run_together
from tests.tiny import COMPUTE, PAD
from tests.training_steps import (
    EXAMPLES,
    LARGEST_GAP,
    assert_gradients_of_one,
    ppo_steps,
    reward_steps,
    sft_steps,
)

# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "processes"),
    [
        (sft_steps, 2),
        pytest.param(partial(sft_steps, packing=True), 2, marks=pytest.mark.long),
        pytest.param(partial(sft_steps, micro_batch_size=1), 3, marks=pytest.mark.long),
        (reward_steps, 2),
        pytest.param(ppo_steps, 3, marks=pytest.mark.long),
        (partial(ppo_steps, value_model="shared"), 2),
        (partial(ppo_steps, value_warmup_iterations=1), 2),
    ],
    ids=["sft", "packed", "micro", "reward", "ppo", "shared", "value"],
)
def test_divided_weights_have_the_gradients_and_the_metrics_of_one_process(
    steps, processes, assert_close
) -> None:
    """The first step's; what follows starts from weights that differ in their last digits."""
    expected, numbers = steps()

    (ours, found), (theirs, _), *_ = run_together(partial(steps, divided=True), processes)

    assert_gradients_of_one(ours, theirs, expected)
    assert_close(found, numbers, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("steps", "processes"),
    [
        (sft_steps, 2),
        pytest.param(partial(sft_steps, micro_batch_size=1), 2, marks=pytest.mark.long),
        pytest.param(reward_steps, 3, marks=pytest.mark.long),
        pytest.param(ppo_steps, 2, marks=pytest.mark.long),
    ],
    ids=["sft", "micro", "reward", "ppo"],
)
def test_divided_weights_in_bfloat16_train_as_whole_ones_do(steps, processes, assert_close) -> None:
    """In every step: a process has the same rows in the same batches, and so the same roundings."""
    bfloat16 = Compute(torch.device("cpu"), "bfloat16")

    expected, numbers = run_together(partial(steps, bfloat16), processes)[0]
    found, others = run_together(partial(steps, bfloat16, divided=True), processes)[0]
    exact, _ = run_together(partial(steps, COMPUTE), processes)[0]

    assert len(found) == len(expected) > 1
    for one, other, not_rounded in zip(found, expected, exact, strict=True):
        assert ((one - other).norm() / other.norm()).item() <= LARGEST_GAP
        assert not torch.equal(other, not_rounded), "it is bfloat16"
    assert_close(others, numbers, rtol=1e-5, atol=1e-6)


def test_every_process_makes_as_many_passes_as_the_others() -> None:
    """Rows 0, 2 and 4 are the first one's, 1 and 3 the second's."""

    def work():
        held = Held(tiny.llama(), divided=True)
        whole = Held(tiny.llama())
        return [
            [(micro.rows, micro.counts) for micro in each.micro_batches([10, 11, 12, 13, 14], 1)]
            for each in (held, whole)
        ]

    first, second = run_together(work)
    assert first == [[([10], True), ([12], True), ([14], True)]] * 2
    assert second[0] == [([11], True), ([13], True), ([10], False)]
    assert second[1] == second[0][:2]


def test_s34_gradients_of_divided_weights_are_scaled_down_to_the_global_norm() -> None:
    """Both processes compute the same loss, so their sum has twice the gradient of one."""
    ids = torch.tensor([[5, 6, 7, 8]])

    def gradient_of(held: Held) -> list[Tensor]:
        held.compute(lambda: 100 * held.model(ids).logits.square().mean()).backward()
        return [part(weight.grad) for weight in held.model.parameters()]

    def work() -> tuple[float, float]:
        held = Held(tiny.llama(), divided=True)
        gradients = gradient_of(held)
        settings = OptimiserParams(max_grad_norm=0.5)
        norm = Optimiser(settings, held.model.named_parameters()).scale_gradients()
        squares = distributed.totals([float(sum(each.square().sum() for each in gradients))])
        return float(norm), squares[0] ** 0.5

    alone = torch.cat([each.flatten() for each in gradient_of(Held(tiny.llama()))]).norm().item()
    assert alone > 1
    for norm, after in run_together(work):
        assert (norm, after) == (pytest.approx(2 * alone, rel=1e-4), pytest.approx(0.5, rel=1e-4))


# --- weights -----------------------------------------------------------------------------------


def test_a_process_holds_its_rows_and_a_copy_has_all_of_them() -> None:
    """16 rows of embeddings among 3 processes: 6, 6 and 4."""

    def work():
        held = Held(tiny.llama(), divided=True)
        embeddings = held.model.get_input_embeddings().weight
        copy = held.whole()
        assert copy.get_input_embeddings().weight is copy.get_output_embeddings().weight
        assert held.whole().get_input_embeddings().weight is not copy.get_input_embeddings().weight
        rows = [len(part(weight)) for weight in held.model.parameters()]
        return len(part(embeddings)), sum(rows), copy.state_dict()

    plain = tiny.llama().state_dict()
    found = run_together(work, processes=3)
    assert [count for count, _, _ in found] == [6, 6, 4]
    rows = sum(len(weight) for weight in tiny.llama().parameters())
    assert sum(count for _, count, _ in found) == rows
    for _, _, copy in found:
        assert copy.keys() == plain.keys()
        assert all(torch.equal(copy[name], plain[name]) for name in plain)


def test_a_copy_to_compute_with_has_linear_layers_in_the_computes_precision() -> None:
    def work():
        bfloat16 = Compute(torch.device("cpu"), "bfloat16")
        lm = Held(tiny.llama(), divided=True).whole(bfloat16)
        layer = lm.base_model.layers[0]
        weights = layer.mlp.up_proj.weight, layer.input_layernorm.weight, lm.lm_head.weight
        return [weight.dtype for weight in weights]

    assert run_together(work) == [[torch.bfloat16, torch.float32, torch.float32]] * 2


# --- whole trainings, and checkpoints of them ---------------------------------------------------

Weights = dict[str, Tensor]


def ppo_weights(*, divided: bool = False, folder: Path | None = None, stop: int = 2) -> Weights:
    """The actor after `stop` iterations, their average; goes on from a checkpoint in `folder`."""
    rate = OptimiserParams(lr=1e-3, warmup_steps=0)
    params = ppo_world.params(
        optimiser=rate, value_optimiser=rate, average_decay=0.5, iterations=2, micro_batch_size=3
    )
    training = ppo_world.fresh(params, reference_seed=1, divided=divided)
    found = load_newest(folder)[0] if folder is not None else None
    if found is not None:
        training.load_state_dict(found.state)
    ppo_world.run(training, params, stop=stop)
    if folder is not None:
        save_checkpoint(folder, training.iteration, training.state_dict(), {})
    training.average.publish()
    return training.held.whole().state_dict()


def sft_weights(folder: Path, *, divided: bool = False, epochs: int = 2) -> Weights:
    """A policy after SFT by Muon, which has AdamW for embeddings; goes on from a checkpoint."""
    rate = OptimiserParams(name="muon", lr=1e-3, muon_lr=1e-3, warmup_steps=0, schedule="constant")
    params = SFTParams(epochs=epochs, batch_size=3, optimiser=rate)
    model = tiny.llama()
    held = Held(model, divided=divided)
    training = Training(model, Optimiser(rate, model.named_parameters()), held)
    if (found := load_newest(folder)[0]) is not None:
        training.load_state_dict(found.state)
    list(sft.train(training, EXAMPLES, params, pad_id=PAD, compute=COMPUTE, seeds=Seeds(0)))
    save_checkpoint(folder, training.step, training.state_dict(), {})
    return held.whole().state_dict()


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def assert_near(found: Weights, expected: Weights) -> None:
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=2e-6, msg=name)


@pytest.mark.long
def test_a_round_resumes_to_the_bits_of_one_without_a_stop_and_near_those_of_one_process(
    tmp_path: Path,
) -> None:
    straight = partial(ppo_weights, divided=True)
    with_folder = partial(straight, folder=tmp_path)

    first, second = run_together(straight)
    run_together(partial(with_folder, stop=1))
    resumed, _ = run_together(with_folder)

    assert_same(second, first)
    assert_same(resumed, first)
    assert_near(first, ppo_weights())


@pytest.mark.long
def test_a_checkpoint_loads_however_weights_were_held_and_are(tmp_path: Path) -> None:
    def run(folder: str, processes: int, **changes) -> Weights:
        return run_together(partial(sft_weights, tmp_path / folder, **changes), processes)[-1]

    straight = sft_weights(tmp_path / "alone")
    run("two", 2, divided=True, epochs=1)
    run("whole", 2, epochs=1)
    for folder in ("one", "three"):
        shutil.copytree(tmp_path / "two", tmp_path / folder)

    assert_near(run("two", 2, divided=True), straight)
    assert_near(run("one", 1), straight)
    assert_near(run("three", 3, divided=True), straight)
    assert_near(run("whole", 2, divided=True), straight)


def test_each_process_writes_its_rows_and_all_are_verified(tmp_path: Path) -> None:
    run_together(partial(sft_weights, tmp_path, divided=True, epochs=1))
    (path,) = tmp_path.iterdir()
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}

    assert sizes.keys() == {
        "manifest.json", "parts-0.safetensors", "parts-1.safetensors", "state.json",
        "tensors.safetensors",
    }  # fmt: skip
    assert abs(sizes["parts-0.safetensors"] / sizes["parts-1.safetensors"] - 1) < 0.05
    assert sizes["tensors.safetensors"] < 0.1 * sizes["parts-0.safetensors"]
    (path / "parts-1.safetensors").unlink()
    found, (line,) = load_newest(tmp_path)
    assert found is None
    assert line.endswith("parts-1.safetensors: missing; its manifest lists it")


def test_the_first_process_says_why_another_could_not_write_its_rows(tmp_path: Path) -> None:
    """Files of the second may have 1,000 bytes."""

    def work() -> None:
        state = Held(tiny.llama(), divided=True).model.state_dict()
        save_checkpoint(tmp_path, 1, state, {})
        if distributed.rank() == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        save_checkpoint(tmp_path, 2, state, {})

    first, second = run_together(work)
    assert isinstance(first, OSError)
    assert first.errno == errno.EFBIG
    assert first.filename == str(tmp_path / ".staging/parts-1.safetensors")
    # It ends without a word, so that the first one's are read.
    assert isinstance(second, distributed.LostProcessError)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_the_death_of_another_is_an_error_that_says_so() -> None:
    """Where it is noticed first: while a layer's weights are put together."""

    def work() -> None:
        held = Held(tiny.llama(), divided=True)
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ids = torch.tensor([[4, 5, 6]])
        held.compute(lambda: held.model(input_ids=ids).logits.sum()).backward()

    found, nothing = run_together(work)
    assert nothing is None
    assert isinstance(found, distributed.LostProcessError)
