"""Two commits whose results `tasks.compare` sets side by side."""

import re
from pathlib import Path

import pytest

from tests.traced_world import START, World

ROOT = Path(__file__).resolve().parents[4]


def metrics(gold: float) -> str:
    interval = f'{{"mean": {gold}, "low": {gold - 1}, "high": {gold + 1}, "n": 9}}'
    return (
        f'{{"policy": "r1", "gold": {interval}, "win_rate_vs_sft": {interval}, "kl": {interval}, '
        '"win_rate_vs_previous": null, "proxy": {"mean": 1.0}, "length": {"mean": 5}, '
        '"finished": 1.0, "distinct_2": 0.5}'
    )


def samples(golds: list[float]) -> str:
    """As `evaluate` writes them; a response may hold the ends of lines of Unicode."""
    text = '"response": "a\u2028b\u2029c\u0085d"'
    rows = [f'{{"prompt_id": "{n}", "gold": {gold}, {text}}}' for n, gold in enumerate(golds)]
    return "".join(f"{row}\n" for row in rows)


@pytest.fixture(name="world")
def world_fixture(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two commits: another kl_coef and another judge, gold 4 then 6.5."""
    world = World(experiment / "world")
    # The world records of this section no more than its files.
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    bare = re.sub(r"^prepare:\n(  .*\n)+", "prepare: {files: null}\n", text, flags=re.MULTILINE)
    (world.root / "params.yaml").write_text(bare, encoding="utf-8")
    world.track("params.yaml")
    world.prepare(["one", "two", "three", "four"], ["one"])
    world.start()
    world.round("r1", START, ["ann"], "first")
    world.measure("r1", {"metrics.json": metrics(4.0), "samples.jsonl": samples([3, 4, 5])})
    world.commit("first")
    params = world.root / "params.yaml"
    params.write_text(params.read_text().replace("kl_coef: 0.04", "kl_coef: 0.1"))
    world.round("r1", START, ["bob"], "second")
    world.measure("r1", {"metrics.json": metrics(6.5), "samples.jsonl": samples([5, 7, 6])})
    world.commit("second")
    monkeypatch.chdir(world.root)
    return world
