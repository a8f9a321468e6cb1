"""The plan of memory: its parts against sums by hand, and what its settings change."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import memory_measured
from benchmarks.memory_plan import GIB, ROUNDS, Round, plan
from rlhf.compute import Compute

PAGE = (Path(__file__).resolve().parents[2] / "docs/models.md").read_text(encoding="utf-8")

TINY = Round(
    "tiny", 4000, 64, 160, 6, 4, 2, bfloat16=False, separate=True,
    micro_batch=4, rows=32, prompt=48, response=80,
)  # fmt: skip

EMBEDDINGS = 4000 * 64
LINEAR = 6 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
"""Queries and outputs, keys and values, three matrices of the MLP."""
NORMS = 6 * 2 * 64 + 64
TRUNK = EMBEDDINGS + LINEAR + NORMS


def test_weights_and_moments_are_those_of_four_models():
    """Policy and value model with two moments each, reference and reward model without."""
    expected = 4 * (3 * TRUNK + 3 * TRUNK + TRUNK + TRUNK)
    assert plan(TINY).models == pytest.approx(expected, rel=0.01)


@pytest.mark.long
def test_what_is_frozen_takes_two_bytes_a_weight_in_its_linear_layers():
    saved = plan(TINY).models - plan(replace(TINY, bfloat16=True)).models
    assert saved == pytest.approx(2 * 2 * LINEAR, rel=0.01)


@pytest.mark.long
def test_an_adapter_trains_next_to_nothing_and_is_its_own_reference():
    found = plan(replace(TINY, lora=True, separate=False)).models
    adapter = 6 * 16 * (2 * 128 + 2 * 96 + 3 * 224)
    assert found == pytest.approx(4 * (2 * TRUNK + 3 * adapter), rel=0.02)


@pytest.mark.long
def test_a_rollout_takes_at_least_its_cache_and_an_update_its_gradients():
    found = plan(TINY)
    cache = 2 * 6 * 32 * 32 * (48 + 80) * 4
    assert found.rollout > found.models + cache
    assert found.update > found.models + 4 * 2 * TRUNK
    assert found.most == max(found.rollout, found.update)


@pytest.mark.long
def test_recomputing_layers_saves_the_activations_of_an_update():
    """Of five of six layers in each trunk; no rollout is any smaller."""
    plain, recomputed = plan(TINY), plan(replace(TINY, recompute=True))
    one_matrix_of_the_mlp = 4 * 128 * 160 * 4
    assert plain.update - recomputed.update > 2 * 4 * 3 * one_matrix_of_the_mlp
    assert recomputed.rollout == plain.rollout


@pytest.mark.long
@pytest.mark.parametrize("lora", [False, True])
def test_the_models_that_are_measured_are_those_of_the_plan(lora: bool):
    """Bytes of their weights, in bfloat16: a policy that is trained, a reference, a scorer."""
    asked = replace(TINY, bfloat16=True, separate=not lora, lora=lora)
    compute = Compute(torch.device("cpu"), "bfloat16")
    models = memory_measured._models(asked, memory_measured._settings(asked), compute)
    parts = {models.actor, models.reference, models.reward_model} - {None}
    weights = {weight for part in parts for weight in part.parameters()}
    found = sum(weight.nbytes for weight in weights)
    frozen = 4 * (EMBEDDINGS + NORMS) + 2 * LINEAR
    adapter = 6 * 16 * (2 * 128 + 2 * 96 + 3 * 224)
    expected = 2 * frozen + 4 * adapter if lora else 2 * frozen + 2 * 4 * TRUNK
    assert found == pytest.approx(expected, rel=0.002)
    memory_measured._train(replace(asked, rows=4, micro_batch=2), "cpu")


TARGETS = {"135M": 10, "1B": 60, "1B shared": 40, "8B": 48}
"""GiB for 128 answers of 256 + 512 tokens."""


def targeted(asked: Round) -> str:
    """Which target a round has."""
    size = asked.name.partition(",")[0]
    return f"{size} shared" if size == "1B" and not asked.separate else size


def test_the_rounds_with_a_limit_are_those_that_have_a_target():
    limited = [asked for asked in ROUNDS if asked.limit is not None]
    assert {targeted(asked): asked.limit for asked in limited} == TARGETS
    for asked in limited:
        assert (asked.rows, asked.prompt, asked.response) == (128, 256, 512)


@pytest.mark.long
@pytest.mark.parametrize("asked", ROUNDS, ids=lambda asked: asked.name)
def test_each_plan_keeps_its_limit_and_stands_in_the_page(asked: Round):
    found = plan(asked)
    if asked.limit is not None:
        assert found.most / GIB <= asked.limit
    numbers = " | ".join(
        f"{size / GIB:.1f}" for size in (found.models, found.rollout, found.update)
    )
    assert f"| {asked.name} | {numbers} |" in PAGE
