"""The algebra of batches."""

import dataclasses

import pytest
import torch

from rlhf.batches import BatchShapeError, PPOBatch, Rollout

FLOATS = ("old_logprobs", "ref_logprobs", "old_values", "advantages", "returns")


def ppo_batch(rows: int, *, width: int = 3, start: int = 0) -> PPOBatch:
    """A batch in which every number tells its row."""
    number = torch.arange(start, start + rows).unsqueeze(1)
    floats = {name: number.expand(rows, width).float() + k for k, name in enumerate(FLOATS)}
    return PPOBatch(
        prompt_ids=number.expand(rows, 2).clone(),
        prompt_mask=torch.ones(rows, 2, dtype=torch.bool),
        response_ids=number.expand(rows, width).clone(),
        response_mask=torch.ones(rows, width, dtype=torch.bool),
        **floats,
    )


def rows_of(batch: PPOBatch) -> list[int]:
    """The rows a batch holds, which every field must agree on."""
    found = {
        tuple((getattr(batch, name)[:, 0] - k).int().tolist()) for k, name in enumerate(FLOATS)
    }
    found.add(tuple(batch.prompt_ids[:, 0].tolist()))
    found.add(tuple(batch.response_ids[:, 0].tolist()))
    assert len(found) == 1
    return list(found.pop())


def test_the_length_counts_rows():
    assert len(ppo_batch(5)) == 5


def test_selection_takes_every_field_in_the_order_given():
    assert rows_of(ppo_batch(5).select(torch.tensor([4, 0, 0]))) == [4, 0, 0]


def test_selection_by_mask_keeps_the_rows_that_are_true():
    assert rows_of(ppo_batch(3).select(torch.tensor([True, False, True]))) == [0, 2]


def test_concat_undoes_selection():
    batch = ppo_batch(5)
    joined = PPOBatch.concat([batch.select(rows) for rows in torch.arange(5).split(2)])
    for field in dataclasses.fields(batch):
        assert torch.equal(getattr(joined, field.name), getattr(batch, field.name))


def test_concat_keeps_the_type_and_the_order():
    joined = PPOBatch.concat([ppo_batch(2, start=7), ppo_batch(1)])
    assert type(joined) is PPOBatch
    assert rows_of(joined) == [7, 8, 0]


def test_concat_refuses_different_widths_and_names_the_field():
    with pytest.raises(BatchShapeError, match=r"widths of response_ids, found \[\(3,\), \(4,\)\]"):
        PPOBatch.concat([ppo_batch(2), ppo_batch(2, width=4)])


def test_concat_of_nothing_is_an_error():
    with pytest.raises(BatchShapeError, match="found none"):
        PPOBatch.concat([])


def test_a_batch_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ppo_batch(2).returns = torch.zeros(2, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"returns": torch.ones(3, 3)},
        {"response_mask": torch.ones(2, 4, dtype=torch.bool)},
        {"prompt_ids": torch.zeros(2, 2)},
    ],
    ids=["rows", "width", "dtype"],
)
def test_a_batch_of_wrong_rows_width_or_dtype_is_refused(changes):
    """Rows are always checked; widths and dtypes by jaxtyping while the tests run."""
    with pytest.raises((BatchShapeError, TypeError)):
        dataclasses.replace(ppo_batch(2), **changes)


def test_different_numbers_of_rows_are_refused_in_production_too():
    batch = ppo_batch(2)
    object.__setattr__(batch, "returns", torch.zeros(3, 3))
    with pytest.raises(BatchShapeError, match="'returns': 3"):
        batch.__post_init__()


def test_a_rollout_says_for_each_row_whether_it_ended():
    names = ("logprobs", "sampler_logprobs", "ref_logprobs", "values")
    floats = {name: torch.zeros(2, 3) for name in names}
    rollout = Rollout(
        prompt_ids=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        response_ids=torch.zeros(2, 3, dtype=torch.long),
        response_mask=torch.ones(2, 3, dtype=torch.bool),
        scores=torch.tensor([1.0, 2.0]),
        ended=torch.tensor([True, False]),
        **floats,
    )
    chosen = rollout.select(rollout.ended)
    assert chosen.scores.tolist() == [1.0]


def test_trimming_drops_columns_that_are_padding_in_every_row_and_nothing_else() -> None:
    prompt_mask = torch.tensor([[False, False, True], [False, True, True]])
    response_mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    per_token = torch.arange(8.0).reshape(2, 4)
    batch = PPOBatch(
        prompt_ids=torch.arange(6).reshape(2, 3),
        prompt_mask=prompt_mask,
        response_ids=torch.arange(8).reshape(2, 4),
        response_mask=response_mask,
        old_logprobs=per_token,
        ref_logprobs=per_token - 1,
        old_values=per_token + 1,
        advantages=per_token + 2,
        returns=per_token + 3,
    )
    masks = batch.masks()
    trimmed = batch.trimmed(masks)
    assert trimmed.prompt_ids.tolist() == [[1, 2], [4, 5]]
    assert trimmed.prompt_mask.tolist() == [[False, True], [True, True]]
    assert trimmed.response_ids.tolist() == [[0, 1], [4, 5]]
    assert trimmed.ref_logprobs.tolist() == [[-1.0, 0.0], [3.0, 4.0]]
    assert trimmed.returns.tolist() == [[3.0, 4.0], [7.0, 8.0]]
