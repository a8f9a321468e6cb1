"""Both architectures, rows with padding and a folder, for whatever tests models."""

import pytest
import torch

from rlhf.padding import pad_left, pad_right
from tests import tiny
from tests.tiny import EOS, PAD, PROMPTS

CPU = torch.device("cpu")
ANSWERS = [[9, 2, 5, EOS], [EOS], [7, 7], [3, 12, EOS]]
"""The third one was cut at the length limit."""
BOTH = pytest.mark.parametrize("build", [tiny.llama, tiny.gpt2])


def padded(prompts=PROMPTS, answers=ANSWERS):
    return (*pad_left(prompts, PAD), *pad_right(answers, PAD))


def widened(ids, mask, *, left=0, right=0, junk=PAD):
    """The same rows with more padding."""
    pads = (left, right)
    wide_ids = torch.nn.functional.pad(ids, pads, value=junk)
    return wide_ids, torch.nn.functional.pad(mask, pads, value=False)


def saved(model, folder):
    model.save_pretrained(folder)
    return folder
