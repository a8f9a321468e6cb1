"""Recorded steps draw what steps one by one draw, and keep Python and the host out.

There is no GPU here: a pretended graph repeats what was asked of torch (tests/pretended_graph.py).
tests/integration/test_gpu_decoding.py has a real one.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from rlhf import cuda_graphs, decoding_attention, decoding_graph, generation
from rlhf.attention_masks import TAKE_ANY_MASK
from rlhf.decoding_graph import recorder
from rlhf.draws import draw_table
from rlhf.generation import Responses, sample_responses
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from rlhf.stopping import NonFiniteError
from tests import families, pretended_device, pretended_graph, tiny
from tests.pretended_device import DEVICE
from tests.tiny import EOS, PAD, PROMPTS

FAMILIES = sorted(TAKE_ANY_MASK - {"mistral"})
FAST = {"gpt2", "llama"}
"""The families whose waits are counted with every test; six counts take seconds."""
PADDED = [PROMPTS[row % len(PROMPTS)] for row in range(13)]
EQUAL = [[5, 6, 7 + row] for row in range(9)]
MOST = 14

SETTINGS = {
    "plain": {},
    "filtered": {"top_k": 9, "top_p": 0.9, "temperature": 0.7},
    "least": {"min_new_tokens": 5},
    "one token": {"max_new_tokens": 1},
}

Recordings = list[int]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recordings]:
    """Steps are recorded here; how many rows each recording was of, once a test has run."""
    found: Recordings = []

    def record(step: Callable[[], None]) -> Callable[[], None]:
        found.append(len(step.__self__.rows.number))
        return pretended_graph.record(step)

    monkeypatch.setattr(generation, "recorder", lambda lm, device: record)
    monkeypatch.setattr(decoding_graph, "LENGTH_STEP", 8)
    with pretended_device.deterministic():
        yield found


def sample(lm, prompts, *, stops=(EOS,), device="cpu", **settings) -> Responses:
    params = SamplingParams(**{"max_new_tokens": MOST} | settings)
    ids, mask = pad_left(prompts, PAD)
    return sample_responses(
        lm, ids.to(device), mask.to(device), params, stop_ids=stops, pad_id=PAD,
        draws=draw_table(0, prompts, params.max_new_tokens),
    )  # fmt: skip


def one_by_one(monkeypatch: pytest.MonkeyPatch, *args, **kwargs) -> Responses:
    with monkeypatch.context() as patch:
        patch.setattr(generation, "recorder", lambda lm, device: None)
        return sample(*args, **kwargs)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("prompts", [PADDED, EQUAL], ids=["padded", "equal"])
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.long) for name in FAMILIES],
)
def test_responses_are_those_of_steps_one_by_one(
    family: str, prompts, settings, recorded: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = families.policy(family)
    stops = (EOS, 5, 9)

    found = sample(lm, prompts, stops=stops, **settings)

    expected = one_by_one(monkeypatch, lm, prompts, stops=stops, **settings)
    assert found.rows() == expected.rows()
    assert torch.equal(found.ended, expected.ended)
    assert torch.equal(found.response_ids, expected.response_ids)
    assert torch.equal(found.response_mask, expected.response_mask)
    assert bool(recorded) == (settings.get("max_new_tokens") != 1)


def test_lengths_and_rows_that_change_are_recorded_anew(recorded: Recordings) -> None:
    """Eight rows, of which one ends at each of the tokens 3 to 10; prompts have four tokens.

    Of eight rows positions 5 to 8 are recorded, then 9 to 16. Four rows are left after token 6, two
    after token 8, one after token 9.
    """
    prompts = [[5, 6, 7, 8 + row] for row in range(8)]

    found = sample_with_lengths(tiny.llama(), prompts, range(3, 11))

    assert [len(row) for row in found.rows()] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert recorded == [8, 8, 4, 2, 1]


@pytest.mark.parametrize("prompts", [PADDED, EQUAL], ids=["padded", "equal"])
def test_a_kernel_that_skips_what_is_masked_reads_all_positions_from_the_first_step(
    prompts, recorded: Recordings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So steps are recorded once for each number of rows. Here that of a CPU stands for it."""
    lm = families.policy("llama")
    read: list[int] = []

    def attend(module, query, key, *args, **kwargs):
        read.append(key.shape[2])
        return decoding_attention.attend(module, query, key, *args, **kwargs)

    mapping = decoding_attention.AttentionInterface._global_mapping
    monkeypatch.setitem(mapping, decoding_attention.NAME, attend)
    expected = one_by_one(monkeypatch, lm, prompts)
    monkeypatch.setattr(decoding_graph, "recorded_attention", lambda lm, keys: "rlhf_decoding")
    found = sample(lm, prompts)

    assert found.rows() == expected.rows()
    assert set(read) == {max(map(len, prompts)) + MOST}
    assert len(recorded) == len(set(recorded))
    assert lm.config._attn_implementation == "sdpa"


def sample_with_lengths(lm, prompts, lengths) -> Responses:
    """Row i ends at the token `lengths[i]`: a small draw hits the end token, the others miss it."""
    head = lm.get_output_embeddings().weight
    with torch.no_grad():
        head[PAD] = head[EOS] = 0.0
    draws = 0.5 + draw_table(0, prompts, MOST) / 2
    for row, length in enumerate(lengths):
        draws[row, length - 1] = 0.0
    ids, mask = pad_left(prompts, PAD)
    return sample_responses(
        lm, ids, mask, SamplingParams(max_new_tokens=MOST), stop_ids=(PAD, EOS), pad_id=PAD,
        draws=draws,
    )  # fmt: skip


@pytest.mark.parametrize("full", [1, 1000], ids=["until memory is given back", "always"])
def test_a_gpu_without_room_to_record_draws_the_same(
    full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        attempts.append(1)
        if len(attempts) <= full:
            raise torch.OutOfMemoryError
        return pretended_graph.capture(step)

    given_back: list[int] = []
    monkeypatch.setattr(cuda_graphs, "warm", lambda step: step())
    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(1))
    monkeypatch.setattr(generation, "recorder", lambda lm, device: cuda_graphs.record)
    lm = tiny.llama()
    expectation = contextlib.nullcontext() if full == 1 else pytest.warns(match="no room to record")
    with expectation:
        found = sample(lm, PADDED)

    expected = one_by_one(monkeypatch, lm, PADDED)
    assert torch.equal(found.response_ids, expected.response_ids)
    assert len(given_back) == (1 if full == 1 else len(attempts) // 2) > 0


def test_what_lies_behind_the_place_does_not_matter(recorded: Recordings) -> None:
    """Fresh memory is NaN here."""
    lm = tiny.llama()
    expected = sample(lm, PADDED)
    torch.utils.deterministic.fill_uninitialized_memory = True
    found = sample(lm, PADDED)
    assert torch.are_deterministic_algorithms_enabled()

    assert found.rows() == expected.rows()


def test_a_broken_policy_samples_nothing(recorded: Recordings) -> None:
    lm = tiny.llama()
    with torch.no_grad():
        lm.model.norm.weight[0] = torch.nan
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        sample(lm, PADDED)


@pytest.mark.parametrize("tokens", [2, 3, 9])
def test_logits_that_break_on_the_way_end_the_sampling(tokens: int, recorded: Recordings) -> None:
    """The one token that is ever drawn has a broken embedding, which the prompts do not read."""
    lm, drawn = tiny.llama(), 11
    head = torch.nn.Linear(32, tiny.VOCABULARY, bias=True)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[drawn] = 99.0
        lm.get_input_embeddings().weight[drawn] = torch.nan
    lm.set_output_embeddings(head)
    with pytest.raises(NonFiniteError):
        sample(lm, [[5, 6, 7]], max_new_tokens=tokens)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    plain = torch.is_autocast_enabled
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda kind: kind != DEVICE.type and plain(kind)
    )
    with pretended_device.waits() as found:
        yield found


@pytest.mark.parametrize("kind", ["plain", "filtered", "least"])
@pytest.mark.parametrize("prompts", [PADDED, EQUAL], ids=["padded", "equal"])
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name in FAST else pytest.mark.long) for name in FAMILIES],
)
def test_each_token_is_one_wait(
    family: str, prompts, kind: str, recorded: Recordings, waits: list[str]
) -> None:
    """No response ends: none of twenty ids is in the vocabulary, or none is allowed yet."""
    lm = families.policy(family)
    pretended_device.move(lm)

    def count(tokens: int) -> int:
        waits.clear()
        asked = {"min_new_tokens": tokens} if kind == "least" else SETTINGS[kind]
        stops = (EOS,) if kind == "least" else tuple(range(80, 100))
        found = sample(lm, prompts, stops=stops, device=DEVICE, **asked, max_new_tokens=tokens)
        assert found.response_ids.shape[1] == tokens
        return len(waits)

    assert count(6) - count(3) == 3


def test_only_a_gpu_records_and_only_what_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    assert recorder(tiny.llama(), torch.device("cpu")) is None
    assert recorder(tiny.llama(), gpu) is cuda_graphs.record
    assert recorder(families.policy("mistral"), gpu) is None, "it looks back so far only"
    assert recorder(families.policy("gemma2"), gpu) is None
    monkeypatch.setenv(cuda_graphs.SWITCH, "0")
    assert recorder(tiny.llama(), gpu) is None
    monkeypatch.delenv(cuda_graphs.SWITCH)
    for rope in ("dynamic", "longrope"):
        lm = tiny.llama()
        lm.model.rotary_emb.rope_type = rope
        assert recorder(lm, gpu) is None


def test_the_pretended_graph_repeats_memory_not_python() -> None:
    """The host's counter is recorded as it was; memory moves on, by repeating alone."""
    x, total, calls = torch.ones(2), torch.zeros(2), []

    def step() -> None:
        calls.append(1)
        total.add_(x * len(calls))

    repeat = pretended_graph.record(step)
    assert (total.tolist(), len(calls)) == ([1.0, 1.0], 2)
    repeat()
    x.fill_(10)
    repeat()
    assert (total.tolist(), len(calls)) == ([23.0, 23.0], 2)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: float(x.sum()),
        lambda x: x.nonzero(),
        lambda x: torch.tensor([1.0]),
        lambda x: x[x > 0],
        lambda x: torch.unique(x),
        lambda x: x.to("meta"),
    ],
)
def test_the_pretended_graph_refuses_what_needs_the_host(ask) -> None:
    x, stops = torch.ones(2), []
    with pytest.raises(RuntimeError, match="not permitted"):
        pretended_graph.record(lambda: stops.append(ask(x)))
