"""A sweep of the real stages on a tiny world: it is cancelled, ordered again, and sums up its runs.

The table at its end is compared with what the runs themselves have measured.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ordered_runs import Checkout, Orders, served
from tests.integration.test_retried_runs import stages_in
from tests.stage_world import copy_tiny_repository
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE_SECONDS = 1700
"""For several runs of all stages, on a loaded machine."""
SEEDS = (3, 4)
CHANGE: dict[str, Any] = {"large": {"ppo.optimiser.lr": 0.02, "ppo.optimiser.warmup_steps": 0}}
"""Steps with which even three iterations of PPO end elsewhere."""
RUNS = [f"tiny-{label}-seed{seed}" for seed in SEEDS for label in ("base", "large")]
FIGURES = {
    "gold": "gold score (of 10)",
    "win_rate_vs_sft": "win rate vs SFT",
    "kl": "KL to SFT",
}
T = 12.706204736
"""Student's t with one degree of freedom, 95 % two-sided."""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    checkout = Checkout(tmp_path)
    copy_tiny_repository(checkout.root, rounds=1)
    checkout.git("init", "--quiet", "--initial-branch=main")
    checkout.git("add", "--all")
    checkout.git("commit", "--quiet", "-m", "tiny")
    return checkout


@pytest.fixture
def orders(checkout: Checkout) -> Iterator[Orders]:
    with served(checkout) as orders:
        yield orders


def states(orders: Orders, sweep: str) -> dict[str, str]:
    """Run of a sweep -> its state."""
    body = {"flow_runs": {"parent_flow_run_id": {"any_": [sweep]}}}
    found = orders.ask("POST", "/flow_runs/filter", body).raise_for_status().json()
    return {run["name"]: run["state_name"] for run in found}


def test_a_sweep_that_was_cancelled_goes_on_and_its_table_is_what_its_runs_have_measured(
    checkout: Checkout, orders: Orders
):
    workspaces = {run: checkout.root / ".work/runs" / run for run in RUNS}
    form = {"name": "tiny", "overrides": CHANGE, "seeds": list(SEEDS)}
    cancelled = orders.order("rlhf-sweep", **form)
    # In the middle of the second of four runs.
    eventually(lambda: stages_in(workspaces[RUNS[1]]), PATIENCE_SECONDS)
    state = {"type": "CANCELLING", "name": "Cancelling"}
    orders.ask("POST", f"/flow_runs/{cancelled}/set_state", {"state": state}).raise_for_status()
    assert orders.ended(cancelled)["type"] == "CANCELLED"
    assert [run for run, workspace in workspaces.items() if stages_in(workspace)] == []
    assert set(states(orders, cancelled)) == set(RUNS[:2])
    assert states(orders, cancelled)[RUNS[0]] == "Completed"
    assert not workspaces[RUNS[2]].exists()
    assert checkout.git("tag", "--list", "done/*").split() == [f"done/{RUNS[0]}"]

    sweep = orders.order("rlhf-sweep", **form)
    state = orders.ended(sweep, PATIENCE_SECONDS)
    assert (state["name"], state["message"]) == ("Completed", "All 4 runs have a result.")
    assert states(orders, sweep) == dict.fromkeys(RUNS, "Completed")
    assert sorted(checkout.git("tag", "--list", "done/*").split()) == sorted(
        f"done/{run}" for run in RUNS
    )
    body = {"artifacts": {"key": {"any_": ["tiny"]}}}
    (artifact,) = orders.ask("POST", "/artifacts/latest/filter", body).json()
    assert json.loads(artifact["data"]) == table(workspaces)


def table(workspaces: dict[str, Path]) -> list[dict[str, str]]:
    """Means over two seeds, and the paired differences, from the files of the last policies."""
    measured = {
        run: json.loads((path / "results/evaluate/r1/metrics.json").read_text())
        for run, path in workspaces.items()
    }
    rows: list[dict[str, str]] = [{"change": "base"}, {"change": "large"}]
    for row in rows:
        row["seeds"] = "2"
    for figure, title in FIGURES.items():
        base, large = (
            [measured[f"tiny-{label}-seed{seed}"][figure]["mean"] for seed in SEEDS]
            for label in ("base", "large")
        )
        first, second = (after - before for before, after in zip(base, large, strict=True))
        assert (first, second) != (0.0, 0.0), f"{figure}: the change changes nothing"
        mean = (first + second) / 2
        # Of two values s is |a - b| / sqrt(2), and its error of the mean |a - b| / 2.
        half = T * abs(first - second) / 2
        for row, values in zip(rows, (base, large), strict=True):
            row[title] = f"{sum(values) / 2:.3f}"
            row[f"{title}, difference"] = "-"
        rows[1][f"{title}, difference"] = f"{mean:+z.3f} [{mean - half:+z.3f}, {mean + half:+z.3f}]"
    return rows
