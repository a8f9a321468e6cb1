"""A layer with dropout draws from torch's global generator: it goes on where it was."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tasks.running.outcome import Cost
from tasks.running.resuming import Checkpoints


class Drawing:
    """A training whose every step draws from the global generator, as dropout does."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])

    def require_finite_weights(self) -> None:
        pass

    def steps(self, until: int) -> Any:
        for step in range(len(self.drawn), until):
            self.drawn.append(float(torch.rand(())))
            yield step


def stage(work: Path) -> Any:
    identity = {"params": {}, "inputs": {}, "code": {}, "environment": {}, "made_on": {}}
    return SimpleNamespace(
        name="probe", work=work, identity=identity, environment={}, history=[],
        checkpoint_cost=Cost(), restore_history=lambda rows: None,
        signals=SimpleNamespace(asked=False, patient=contextlib.nullcontext),
    )  # fmt: skip


def test_what_draws_from_the_global_generator_goes_on_where_it_was(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RLHF_CHECKPOINT_SECONDS", "0")

    def train(work: Path, until: int) -> list[float]:
        torch.manual_seed(5)
        training = Drawing()
        for _ in Checkpoints(stage(work), training).after_each(training.steps(until)):
            pass
        return training.drawn

    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "cut", 2)

    assert train(tmp_path / "cut", 4) == whole
