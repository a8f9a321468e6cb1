"""Seeds by name, without torch: shared by the data stages and the training loops."""

import hashlib
import json
import random


def named_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and on every part of the name."""
    text = json.dumps([seed, *names]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def named_random(seed: int, *names: str | int) -> random.Random:
    """A fresh `random.Random` for the name."""
    return random.Random(named_seed(seed, *names))
