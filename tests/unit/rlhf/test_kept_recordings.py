"""Which passes are recorded, how many recordings stay, and when they are made anew.

With a pretended graph (tests/recorded_world.py); what a recorded pass gives is in
test_recorded_passes.py.
"""

import contextlib
import gc

import pytest
import torch

from rlhf import cuda_graphs, recorded_passes
from rlhf.lora import add_adapter
from rlhf.params.lora import LoraParams
from rlhf.pass_recordings import GPU, Unfinished
from rlhf.recorded_passes import recorder
from tests import families, recorded_world, tiny
from tests.recorded_world import ALL, CPU, PRETENDED, Calls, captured, inputs, plain, recorded

nothing_recorded = pytest.fixture(autouse=True)(recorded_world.forgotten)


def test_a_pass_that_nobody_differentiates_ends_with_its_result() -> None:
    lm = tiny.llama()
    ids, weights = inputs(0, ALL)
    for _ in range(3):
        (recorded(lm, ids, ALL) * weights).sum().backward()
    calls = Calls(lm.model.layers[0])
    open_pass = recorded(lm, ids, ALL)
    assert Unfinished.exists()
    del open_pass
    (recorded(lm, ids, ALL) * weights).sum().backward()

    assert calls.number == 0


def test_weights_that_moved_are_recorded_anew(assert_close) -> None:
    lm = tiny.llama()
    ids, _ = inputs(0, ALL)
    with torch.no_grad():
        for _ in range(3):
            recorded(lm, ids, ALL)
        other = tiny.llama(5)
        lm.load_state_dict(other.state_dict(), assign=True)
        assert_close(recorded(lm, ids, ALL), plain(other, ids, ALL), rtol=1e-5, atol=1e-5)


def passes_of(lm, rows: int) -> None:
    """One pass, of so many rows."""
    with torch.no_grad():
        recorded(lm, torch.full((rows, 7), 5), torch.ones(rows, 7, dtype=torch.bool))


def kept(lm) -> list[int]:
    return sorted(shape.embeddings[0] for shape in recorded_passes._trunks[lm.base_model]._passes)


def test_what_is_used_no_more_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_passes, "MOST_SHAPES", 2)
    monkeypatch.setattr(recorded_passes, "LONG_UNUSED", 5)
    lm = tiny.llama()
    for rows in (1, 1, 2, 2, 3, 3, 3):
        passes_of(lm, rows)
    assert kept(lm) == [1, 2], "the first was used five passes ago"
    for rows in (1, 3, 3, 3, 3):
        passes_of(lm, rows)

    assert kept(lm) == [1, 3]


def test_shapes_in_turn_are_not_recorded_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_passes, "MOST_SHAPES", 4)
    lm = tiny.llama()
    for _ in range(6):
        for rows in range(1, 7):
            passes_of(lm, rows)

    assert len(captured) == 4
    assert kept(lm) == [1, 2, 3, 4]


def test_a_gpu_without_room_computes_without_and_keeps_no_recording(assert_close) -> None:
    def full(step, pool: object):
        raise torch.OutOfMemoryError

    given_back: list[int] = []
    lm, other = tiny.llama(), tiny.llama(5)
    for rows in (1, 1):
        passes_of(lm, rows)
        passes_of(other, rows)
    assert kept(lm) == kept(other) == [1]
    recorder = PRETENDED._replace(capture=full, give_back=lambda: given_back.append(1))
    ids, weights = inputs(0, ALL)

    def gradients(hidden) -> torch.Tensor:
        lm.zero_grad()
        (hidden() * weights).sum().backward()
        return lm.model.layers[0].mlp.up_proj.weight.grad.clone()

    def states() -> torch.Tensor:
        return recorded(lm, ids, ALL, recorder)

    gradients(states)
    with pytest.warns(UserWarning, match="no room to record a pass of 3 x 64 tokens"):
        second = gradients(states)
    third = gradients(states)
    expected = gradients(lambda: plain(lm, ids, ALL))
    assert_close(second, expected, rtol=1e-5, atol=1e-5)
    assert_close(third, expected, rtol=1e-5, atol=1e-5)
    before = len(captured)
    for rows in (1, 1, 2, 2):
        passes_of(other, rows)
    assert kept(lm) == kept(other) == []
    assert given_back == [1]
    assert len(captured) == before


def test_gradients_of_a_plain_pass_are_taken_over_not_held_twice() -> None:
    lm = tiny.llama()
    ids, weights = inputs(0, ALL)
    (recorded(lm, ids, ALL) * weights).sum().backward()
    weight = lm.model.layers[0].mlp.up_proj.weight
    place, once = weight.grad.data_ptr(), weight.grad.clone()
    (recorded(lm, ids, ALL) * weights).sum().backward()

    assert captured
    assert weight.grad.data_ptr() == place
    assert torch.equal(weight.grad, 2 * once)


def test_a_model_that_is_gone_takes_its_recordings_along() -> None:
    lm = tiny.llama()
    ids, weights = inputs(0, ALL)
    for _ in range(3):
        (recorded(lm, ids, ALL) * weights).sum().backward()
    assert len(recorded_passes._trunks) == 1
    del lm
    gc.collect()

    assert len(recorded_passes._trunks) == 0


def test_only_a_gpu_records_and_only_what_does_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    assert recorder(tiny.llama().base_model, CPU) is None
    assert recorder(tiny.llama().base_model, gpu) is GPU
    for family in ("gemma", "granite", "mistral", "gemma2", "opt", "gpt2"):
        assert recorder(families.policy(family).base_model, gpu) is None, family
    lm = tiny.llama()
    add_adapter(lm, LoraParams(rank=2, alpha=4), torch.Generator().manual_seed(0))
    assert recorder(lm.base_model, gpu) is None
    for rope in ("dynamic", "longrope"):
        lm = tiny.llama()
        lm.model.rotary_emb.rope_type = rope
        assert recorder(lm.base_model, gpu) is None, rope
    monkeypatch.setenv(cuda_graphs.SWITCH, "0")
    assert recorder(tiny.llama().base_model, gpu) is None


class Full:
    """torch's graph on a GPU that has no room for it once it is captured.

    CUDA allocates that itself, so the error is not the one of torch's allocator.
    """

    def capture_begin(self, *args: object, **named: object) -> None:
        pass

    def capture_end(self) -> None:
        raise torch.AcceleratorError("CUDA error: out of memory")


def test_no_room_for_a_captured_graph_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Full)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graphs, "_stream", lambda: None)
    monkeypatch.setattr(cuda_graphs, "warm", lambda step: step())

    with pytest.warns(UserWarning, match="no room to record a decoding step"):
        repeat = cuda_graphs.record(lambda: steps.append(1))
    before = len(steps)
    repeat()
    assert len(steps) == before + 1
    with pytest.raises(torch.OutOfMemoryError, match="CUDA error: out of memory"):
        cuda_graphs.capture(lambda: None)
