"""Recorded decoding steps on a real GPU: the responses of steps one by one, and the same twice."""

from itertools import takewhile

import pytest
import torch
from torch import nn

from rlhf import cuda_graphs, generation
from rlhf.draws import draw_table
from rlhf.generation import Responses, sample_responses
from rlhf.padding import pad_left
from rlhf.params.sampling import SamplingParams
from tests import families
from tests.integration.test_gpu_waits import waits
from tests.tiny import EOS, PAD, PROMPTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("as_in_a_stage"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

GPU = torch.device("cuda")
PADDED = [PROMPTS[row % len(PROMPTS)] for row in range(64)]
EQUAL = [[5, 6, 7 + row % 9] for row in range(64)]


def sample(lm, prompts, *, stops=(EOS, 5, 9), tokens: int = 300, **settings) -> Responses:
    params = SamplingParams(max_new_tokens=tokens, **settings)
    ids, mask = pad_left(prompts, PAD)
    return sample_responses(
        lm, ids.to(GPU), mask.to(GPU), params, stop_ids=stops, pad_id=PAD,
        draws=draw_table(0, prompts, tokens),
    )  # fmt: skip


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch):
    def sampled(*args, **kwargs) -> Responses:
        with monkeypatch.context() as patch:
            patch.setattr(generation, "recorder", lambda lm, device: None)
            return sample(*args, **kwargs)

    return sampled


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [{}, {"top_k": 9, "top_p": 0.9}, {"min_new_tokens": 40}])
@pytest.mark.parametrize("prompts", [PADDED, EQUAL], ids=["padded", "equal"])
@pytest.mark.parametrize("family", ["llama", "olmo2", "qwen2", "qwen3", "smollm3"])
def test_recorded_steps_draw_what_steps_one_by_one_draw(
    family: str, prompts, settings, precision: torch.dtype, plain
) -> None:
    """While rows leave. In bfloat16 a draw may fall within rounding of the boundary of two tokens.

    From there a response is another, so few draws up to the first difference may differ. Recorded
    steps give the same bytes twice in either precision.
    """
    lm = families.policy(family).to(GPU)
    assert generation.recorder(lm, GPU) is cuda_graphs.record
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        found, again = (sample(lm, prompts, **settings) for _ in range(2))
        expected = plain(lm, prompts, **settings)

    assert torch.equal(found.response_ids, again.response_ids)
    pairs = list(zip(found.rows(), expected.rows(), strict=True))
    other = sum(one != two for one, two in pairs)
    same = sum(
        len(list(takewhile(lambda each: each[0] == each[1], zip(one, two, strict=False))))
        for one, two in pairs
    )
    assert other == 0 if precision == torch.float32 else other <= 0.02 * same


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions that each recorded step reads."""
    found: list[int] = []

    def record(step):
        found.append(step.__self__.shown)
        return cuda_graphs.record(step)

    monkeypatch.setattr(generation, "recorder", lambda lm, device: record)
    return found


@pytest.mark.parametrize("prompts", [PADDED, EQUAL], ids=["padded", "equal"])
def test_long_responses_are_read_to_three_lengths(prompts, plain, read: list[int]) -> None:
    """128, 256 and 384 positions; no response ends."""
    lm = families.policy("llama").to(GPU)
    expected = plain(lm, prompts, stops=(99,))
    found = sample(lm, prompts, stops=(99,))

    assert read == [128, 256, max(len(prompt) for prompt in prompts) + 300]
    assert found.rows() == expected.rows()


def test_in_bfloat16_all_positions_are_read_from_the_first_step(read: list[int]) -> None:
    """By the kernel of our own: so a rollout in which no row leaves is one recording."""
    lm = families.policy("llama").to(GPU)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        sample(lm, PADDED, stops=(99,))

    assert read == [max(len(prompt) for prompt in PADDED) + 300]


@pytest.mark.parametrize(
    ("rows", "heads", "key_heads", "size", "positions"),
    [(64, 32, 8, 64, 768), (64, 9, 3, 64, 96), (5, 32, 32, 64, 333), (7, 6, 2, 80, 70),
     (3, 32, 8, 128, 500), (2, 8, 1, 256, 130), (2, 4, 4, 8, 1)],
)  # fmt: skip
def test_the_kernel_attends_to_what_is_seen(
    rows: int, heads: int, key_heads: int, size: int, positions: int
) -> None:
    """Blocks that a row does not see at all among it; what nobody sees is NaN."""
    from rlhf import gpu_attention

    draws = torch.Generator().manual_seed(0)
    query = torch.randn(rows, heads, 1, size, generator=draws)
    seen = torch.rand(rows, positions + 20, generator=draws) < 0.7
    seen[0, : positions // 2] = False
    seen[:, positions - 1] = True
    seen = seen[:, :positions]
    stores = torch.randn(2, rows, key_heads, positions + 20, size, generator=draws).bfloat16()
    stores[:, :, :, positions:] = torch.nan
    key, value = stores[..., :positions, :]
    unseen = ~seen[:, None, :, None]
    key, value = (each.masked_fill_(unseen, torch.nan).to(GPU) for each in (key, value))
    mask = seen[:, None, None].to(GPU)
    found, again = (
        gpu_attention.attend(nn.Identity(), query.to(GPU), key, value, mask, size**-0.5)[0]
        for _ in range(2)
    )

    wide = [
        each.double().nan_to_num().repeat_interleave(heads // key_heads, dim=1)
        for each in (key, value)
    ]
    products = query.bfloat16().to(GPU).double() @ wide[0].transpose(-1, -2) * size**-0.5
    expected = products.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ wide[1]
    assert torch.equal(found, again)
    assert (found.double() - expected.transpose(1, 2)).norm() <= 0.01 * expected.norm()


def test_each_further_token_is_one_wait() -> None:
    lm = families.policy("llama").to(GPU)

    def count(tokens: int) -> int:
        return waits(lambda: sample(lm, EQUAL, stops=(99,), tokens=tokens))

    count(5)  # What is only waited for at first.
    assert count(90) - count(60) == 30
