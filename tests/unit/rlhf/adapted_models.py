"""Tiny models with low-rank adapters that say something."""

import pytest
import torch

from rlhf.lora import adapter_weights, add_adapter
from rlhf.params.lora import LoraParams
from tests import tiny
from tests.tiny import EOS

CPU = torch.device("cpu")
LORA = LoraParams(rank=4, alpha=8)
BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])
IDS = torch.tensor([[5, 6, 7, 8, EOS], [4, 10, 11, 12, 13]])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adapted(build=tiny.llama, seed: int = 3, params: LoraParams = LORA):
    """A model whose adapter says something: B is drawn as well."""
    model = build()
    add_adapter(model, params, generator(seed))
    for name, weight in adapter_weights(model).items():
        if "lora_B" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator(seed)) / 4)
    return model
