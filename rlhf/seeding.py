"""One seed, many named and independent random streams; nothing draws from a global generator."""

from dataclasses import dataclass

import torch

from rlhf.named_seeds import named_seed


@dataclass(frozen=True)
class Seeds:
    """Derives a seed from the run's one seed and a name, e.g. `seeds.named("ppo", "r1", 3)`."""

    seed: int

    def named(self, *names: str | int) -> int:
        """A 63-bit seed that depends on the run's seed and on every part of the name."""
        return named_seed(self.seed, *names)

    def torch(self, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh torch generator for the name, on the device that will draw from it."""
        generator = torch.Generator(device=device)
        generator.manual_seed(self.named(*names))
        return generator
