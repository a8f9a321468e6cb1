"""Passes of tiny models, recorded by a pretended graph (tests/pretended_graph.py) or plain."""

import gc
from collections.abc import Iterator

import torch
from torch import nn

from rlhf import recorded_passes
from rlhf.attention_masks import mask_from_host
from rlhf.padding import position_ids
from rlhf.pass_recordings import Recorder, Unfinished
from rlhf.recorded_passes import recorded_hidden
from tests import pretended_graph

CPU = torch.device("cpu")
captured: list[int] = []


def capture(step, pool: object):
    captured.append(1)
    return pretended_graph.capture(step, pool)


PRETENDED = Recorder(lambda step: step(), capture, object, lambda: None)


def forgotten() -> Iterator[None]:
    """For a fixture: a test begins without recordings."""
    gc.collect()
    Unfinished.current = None
    captured.clear()
    yield
    recorded_passes._trunks.clear()
    recorded_passes._Trunk.is_full = False


class Calls:
    """How often a module runs, in Python."""

    def __init__(self, module: nn.Module):
        self.number = 0
        module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.number += 1


def inputs(seed: int, mask: torch.Tensor):
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 14, mask.shape, generator=draws)
    return torch.where(mask, ids, 0), torch.randn(*mask.shape, 32, generator=draws)


ALL = torch.ones(3, 40, dtype=torch.bool)
SHORTER = torch.arange(40) < torch.tensor([[40], [33], [5]])
MASKS = {"none": ALL, "padding": SHORTER}


def recorded(
    lm, ids: torch.Tensor, mask: torch.Tensor, recorder: Recorder = PRETENDED
) -> torch.Tensor:
    trunk, positions = lm.base_model, position_ids(mask)
    with mask_from_host(trunk, mask, positions, CPU) as visible:
        return recorded_hidden(recorder, trunk, ids, visible, positions)


def plain(lm, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    trunk, positions = lm.base_model, position_ids(mask)
    with mask_from_host(trunk, mask, positions, CPU) as visible:
        found = trunk(
            input_ids=ids, attention_mask=visible, position_ids=positions, use_cache=False
        )
    return found.last_hidden_state
