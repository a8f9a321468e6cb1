"""Packing: rows that hold everything once, and sequences that do not see each other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel

from rlhf.logits import language_model_head, sequence_hidden
from rlhf.packing import (
    PackingError,
    check_packing,
    pack,
    packed_hidden,
    packed_positions,
    packed_rows,
    tight_rows,
)
from rlhf.padding import pad_left, pad_right
from tests import families, pretended_device, tiny
from tests.packed_rows import KINDS
from tests.packed_rows import packed_as as as_either

packed_as = pytest.fixture(params=KINDS)(as_either)
SEQUENCES = [[5, 6, 7, 8, 9, 1], [4, 10, 1], [3], [13, 14, 15, 1], [9, 9, 12, 11, 3, 4, 5, 1]]
BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(20, 50))
def test_s52_every_sequence_is_in_one_row_and_no_row_is_too_long(lengths, width):
    rows = pack(lengths, width)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    totals = [sum(lengths[index] for index in row) for row in rows]
    assert all(total <= width for total in totals)
    # First fit: no two rows would fit into one.
    assert all(a + b > width for n, a in enumerate(totals) for b in totals[n + 1 :])


def test_a_sequence_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="expected 9 or more for sequence 1, found 8"):
        pack([3, 9], 8)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_s52_tight_rows_hold_every_sequence_and_are_no_larger_than_a_padded_batch(lengths):
    rows = tight_rows(lengths)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    width = max(sum(lengths[index] for index in row) for row in rows)
    assert len(rows) * width * (1024 + width) <= len(lengths) * max(lengths) * (1024 + max(lengths))


def test_wider_rows_are_taken_where_they_leave_less_room_than_attention_costs():
    assert sorted(map(len, tight_rows([30] * 8))) == [1] * 8
    assert sorted(map(len, tight_rows([30, 20, 20, 20]))) == [4]
    # 2 rows of 1,600 hold fewer tokens than 3 of 1,200, but attention costs more than it saves.
    assert sorted(map(len, tight_rows([1000, 600, 600, 600]))) == [1, 1, 2]


def test_no_row_has_more_tokens_than_the_model_has_positions_but_where_a_sequence_has():
    lengths = [30, 20, 20, 20]  # All 90 in one row cost least.
    assert sorted(map(sum, rows_of_lengths(lengths, most=60))) == [40, 50]
    # 4 rows of 30 or 3 of 40: 4 * 30 * 1054 = 126,480 is less than 3 * 40 * 1064 = 127,680.
    assert sorted(map(sum, rows_of_lengths(lengths, most=49))) == [20, 20, 20, 30]
    assert max(map(sum, rows_of_lengths(lengths, most=10))) == 30


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_rows_that_will_be_padded_have_one_of_two_widths(lengths):
    rows = tight_rows(lengths, step=32)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    longest = max(lengths)
    most = max(sum(lengths[index] for index in row) for row in rows)
    assert most <= -(-2 * longest // 32) * 32
    # Either as many rows as rooms of the longest sequence, or of two of them, take.
    rooms = [-(-longest * times // 32) * 32 for times in (1, 2)]
    assert len(rows) in [len(pack(lengths, room)) for room in rooms]


def test_what_padding_costs_counts():
    """8 rows of 33 are padded to 64, 8 * 64 * 1088 = 557,056; 4 of 66 to 96: 430,080."""
    assert sorted(map(len, tight_rows([33] * 8, step=32))) == [2] * 4
    assert sorted(map(len, tight_rows([33] * 8))) == [1] * 8


@pytest.mark.parametrize(
    ("family", "device", "lengths", "width", "expected"),
    [
        ("llama", "cpu", [30, 20, 9], None, [[0, 1, 2]]),
        ("llama", "cpu", [30, 20, 9], 50, [[0, 1, 2]]),
        ("llama", "cpu", [30, 30, 30], None, [[0], [1], [2]]),  # Without padding as they are.
        ("llama", "cpu", [30, 30, 30], 70, [[0], [1], [2]]),
        ("llama", "meta", [30, 20, 9], 50, [[0, 1], [2]]),
        ("gpt2", "cpu", [30, 20, 9], 50, [[0, 1], [2]]),
    ],
)
def test_on_a_cpu_one_row_holds_all_where_each_attends_by_itself(
    family, device, lengths, width, expected
):
    trunk = families.policy(family).base_model
    assert packed_rows(trunk, torch.device(device), lengths, width) == expected


def rows_of_lengths(lengths, most):
    return [[lengths[index] for index in row] for row in tight_rows(lengths, most=most)]


def test_s52_positions_restart_with_every_sequence():
    found = packed_positions([[3, 1, 2], [2]])
    assert found.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 0, 0, 0, 0]]


@BOTH
@torch.no_grad()
def test_s52_logits_of_a_packed_sample_equal_those_of_it_alone(assert_close, build):
    """Against transformers' own pass over each sequence, in a row of its own and in a full one."""
    lm = build()
    rows = [SEQUENCES, SEQUENCES[:2]]
    width = sum(map(len, SEQUENCES))
    ids = torch.tensor(
        [[t for s in row for t in s] + [0] * (width - sum(map(len, row))) for row in rows]
    )
    positions = packed_positions([[len(s) for s in row] for row in rows])
    logits = language_model_head(lm, packed_hidden(lm.base_model, ids, positions))
    for row, found in zip(rows, logits, strict=True):
        sizes = [len(sequence) for sequence in row]
        parts = found[: sum(sizes)].split(sizes)
        for sequence, part in zip(row, parts, strict=True):
            assert_close(part, lm(torch.tensor([sequence])).logits[0], rtol=0, atol=1e-5)


@BOTH
@torch.no_grad()
def test_s52_what_stands_in_a_sequence_changes_nothing_in_the_next(build):
    lm = build()
    positions = packed_positions([[3, 4]])
    one = packed_hidden(lm.base_model, torch.tensor([[5, 6, 7, 8, 9, 10, 11]]), positions)
    other = packed_hidden(lm.base_model, torch.tensor([[2, 3, 4, 8, 9, 10, 11]]), positions)
    assert torch.equal(one[0, 3:], other[0, 3:])
    assert not torch.equal(one[0, :3], other[0, :3])


@pytest.mark.usefixtures("packed_as")
@pytest.mark.parametrize("padded", [pad_left, pad_right])
@BOTH
def test_s52_a_padded_batch_has_the_hidden_states_and_gradient_of_its_packed_rows(
    assert_close, build, padded
):
    """Read at some places only; the others, padding among them, are 0."""
    trunk = build().base_model
    ids, mask = padded(SEQUENCES, 7)
    read = mask & (ids % 2 == 1)
    factors = torch.randn(*ids.shape, 32, generator=torch.Generator().manual_seed(1))
    results = []
    for packing in (False, True):
        hidden = sequence_hidden(trunk, ids, mask, read=read, packing=packing)
        loss = (hidden * factors)[read].sum()
        gradients = torch.autograd.grad(loss, list(trunk.parameters()))
        results.append((hidden, gradients))
    (plain, expected), (found, gradients) = results
    assert_close(found[read], plain[read], rtol=0, atol=1e-5)
    assert not found[~read].any()
    for mine, theirs in zip(gradients, expected, strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", families.EVERY)
def test_s52_every_family_packs_or_is_refused(family):
    """Falcon and Bloom build their masks without positions."""
    trunk = families.policy(family).base_model
    if family in ("bloom", "falcon", "falcon with ALiBi"):
        with pytest.raises(PackingError, match=r"set ppo\.packing to false"):
            check_packing(trunk, SEQUENCES, setting="ppo.packing")
    else:
        check_packing(trunk, SEQUENCES, setting="ppo.packing")


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_a_gpu_has_deterministic_algorithms_for_the_check(family):
    lm = families.policy(family)
    pretended_device.move(lm)
    with pretended_device.waits():
        check_packing(lm.base_model, SEQUENCES, setting="ppo.packing")


@torch.no_grad()
def test_a_model_whose_rows_are_limited_packs_what_is_as_long_as_it_has_positions(assert_close):
    """GPT-Neo's causal mask is as wide as it has positions; 128 here."""
    settings = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    sizes = families.SIZES | settings | {"window_size": 8}
    trunk = AutoModel.from_config(AutoConfig.for_model("gpt_neo", **sizes)).eval()
    long = [[(7 * place + n) % 13 + 3 for place in range(66)] for n in range(4)]
    check_packing(trunk, long, setting="ppo.packing")
    ids, mask = pad_left([[4, 10] * 62, *long], 0)  # Rows of 132 would cost least.
    plain, packed = (sequence_hidden(trunk, ids, mask, packing=on) for on in (False, True))
    assert_close(packed[mask], plain[mask], rtol=0, atol=1e-5)


@BOTH
def test_the_self_check_reads_the_end_of_what_is_longer_than_the_model_has_positions(build):
    """A prompt that long is left out later; GPT-2 here has 128 positions."""
    check_packing(build().base_model, [[*range(2, 14)] * 30, *SEQUENCES], setting="ppo.packing")


@BOTH
def test_s52_the_self_check_passes_for_a_model_that_can_be_packed(build):
    check_packing(build().base_model, SEQUENCES, setting="sft.packing")


def test_s52_the_self_check_stops_a_model_that_looks_across():
    """A trunk that gets neither positions nor where a sequence ends."""
    trunk = tiny.llama().base_model

    class Blind(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = trunk

        def forward(self, input_ids, use_cache, attention_mask=None, position_ids=None):
            return self.trunk(input_ids=input_ids, use_cache=use_cache)

    with pytest.raises(PackingError, match=r"it is alone' failed.*set ppo\.packing to false"):
        check_packing(Blind(), SEQUENCES, setting="ppo.packing")
