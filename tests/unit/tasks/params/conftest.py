"""A copy of params.yaml that a test changes."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.params.loading import ParamsError, load_params

ROOT = Path(__file__).resolve().parents[4]
KNOWN = {
    "run.threads": 2,
    "prepare.train_prompts": 16_000,
    "base.embedded.hidden_size": 128,
    "base.embedded.heads": 4,
    "base.embedded.max_positions": 256,
    "base.embedded.sequence_length": 96,
    "sample.pairs": 1800,
    "label.simulated": 4,
    "ppo.rollout_size": 128,
    "ppo.minibatches": 2,
    "ppo.epochs": 2,
    "ppo.kl_coef": 0.05,
}
"""Values that the messages in tests speak of, whatever the shipped file says."""


class ParamsFile:
    """A copy of the shipped params.yaml that a test changes key by key."""

    def __init__(self, path: Path):
        self.path = path
        self.values: dict[str, Any] = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
        for key, value in KNOWN.items():
            self.set(key, value)

    def set(self, key: str, value: object) -> "ParamsFile":
        *parents, last = key.split(".")
        place = self.values
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
        return self

    def drop(self, key: str) -> "ParamsFile":
        *parents, last = key.split(".")
        place = self.values
        for name in parents:
            place = place[name]
        del place[last]
        return self

    def write(self) -> None:
        YAML().dump(self.values, self.path)

    def problems(self) -> list[str]:
        """One text per problem, without the file's name, which must stand before each."""
        self.write()
        with pytest.raises(ParamsError) as error:
            load_params(self.path)
        lines = str(error.value).splitlines()
        assert all(line.startswith(f"{self.path}: ") for line in lines)
        return [line.removeprefix(f"{self.path}: ") for line in lines]


@pytest.fixture
def params(tmp_path: Path) -> ParamsFile:
    return ParamsFile(tmp_path / "params.yaml")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
