"""The uniform numbers that tokens are drawn with: a table, made before decoding starts."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

import torch

from rlhf.shapes import Draws

BYTES = 8
"""Of the hash, for each number."""


def draw_table(seed: int, prompts: Sequence[Sequence[int]], steps: int) -> Draws:
    """Numbers in [0, 1): a row for each prompt, and in it one number for each token to be drawn.

    A row depends on the seed, the prompt's token ids and the number of equal prompts above it, so
    neither the other prompts nor their order affect a response, and two policies respond to a
    prompt with the same numbers. A table of more steps starts with the columns of one of fewer.

    A number is the upper 53 bits of 8 bytes of SHAKE-128, little-endian: the same on every machine.
    """
    copies: Counter[tuple[int, ...]] = Counter()
    hashed = bytearray()
    for prompt in prompts:
        identity = tuple(prompt)
        name = json.dumps([seed, copies[identity], *identity]).encode()
        hashed += hashlib.shake_128(name).digest(BYTES * steps)
        copies[identity] += 1
    whole = torch.frombuffer(hashed, dtype=torch.int64).view(len(prompts), steps)
    # The shift keeps the sign, which the mask takes away.
    return ((whole >> 11) & (2**53 - 1)).double() * 2.0**-53
