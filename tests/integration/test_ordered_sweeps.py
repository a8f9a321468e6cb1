"""Sweeps that people order: a run for each change and seed, with a real Prefect server and git."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.ordered_runs import (  # noqa: F401
    Checkout,
    Orders,
    checkout_fixture,
    served,
    show,
)
from tests.waiting import eventually

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def orders(checkout: Checkout) -> Iterator[Orders]:
    with served(checkout) as orders:
        yield orders


def test_a_sweep_with_one_wrong_override_starts_no_run(checkout: Checkout, orders: Orders):
    overrides = {"right": {"ppo.kl_coef": 0.1}, "wrong": {"ppo.kl_coeff": 0.1}}
    state = orders.ended(orders.order("rlhf-sweep", name="typo", overrides=overrides, seeds=[0, 1]))
    said = "overrides.wrong: ppo.kl_coeff: unknown key; did you mean ppo.kl_coef?"
    assert (state["name"], state["message"]) == ("BadInput", said)
    assert orders.runs("typo-base-seed0") == []
    assert checkout.git("branch", "--list", "runs/typo*") == ""
    assert list((checkout.root / ".work/runs").glob("typo*")) == []


@pytest.mark.slow
def test_a_sweep_that_is_tried_again_goes_on_wherever_its_branch_is_now(
    checkout: Checkout, orders: Orders
):
    checkout.git("branch", "moving", "main")
    form = {"overrides": {"kl": {"ppo.kl_coef": 0.24}}, "seeds": [22], "revision": "moving"}
    flow_run = orders.order("rlhf-sweep", name="moved", **form)
    assert orders.ended(flow_run)["name"] == "Completed"
    later = checkout.git("commit-tree", "main^{tree}", "-p", "main", "-m", "later")
    checkout.git("branch", "--force", "moving", later)

    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
    path = f"/flow_runs/{flow_run}/set_state"
    orders.ask("POST", path, {"state": state, "force": True}).raise_for_status()
    state = orders.ended(flow_run)
    assert (state["name"], state["message"]) == ("Completed", "All 2 runs have a result.")
    # Another order is another wish.
    state = orders.ended(orders.order("rlhf-sweep", name="moved", **form))
    assert (state["name"], "did not start from moving" in state["message"]) == ("BadInput", True)


@pytest.mark.slow
def test_all_runs_of_a_sweep_are_of_one_commit_whatever_is_committed_meanwhile(
    checkout: Checkout, orders: Orders
):
    common, before = checkout.folder / "common", checkout.git("rev-parse", "HEAD")
    form = {"overrides": {"kl": {"ppo.kl_coef": 0.24}}, "seeds": [24]}
    flow_run = orders.order("rlhf-sweep", name="steady", **form)
    eventually(lambda: (common / "steady-base-seed24").exists())
    later = checkout.commit_meanwhile()
    (common / "steady-base-seed24.go").touch()
    assert orders.ended(flow_run)["name"] == "Completed"
    starts = {
        checkout.git("merge-base", later, f"done/steady-{change}-seed24")
        for change in ("base", "kl")
    }
    assert starts == {before}


def test_one_run_of_a_sweep_can_be_cancelled_and_the_others_go_on(
    checkout: Checkout, orders: Orders
):
    """Its stage would never end: it is asked to."""
    form = {"overrides": {"kl": {"ppo.kl_coef": 0.24}}, "seeds": [23]}
    sweep = orders.order("rlhf-sweep", name="alone", **form)
    common = checkout.folder / "common"
    eventually(lambda: (common / "alone").exists())
    (flow_run,) = orders.runs("alone-base-seed23")
    state = {"type": "CANCELLING", "name": "Cancelling"}
    orders.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": state}).raise_for_status()

    assert (orders.ended(flow_run)["type"], orders.ended(sweep)["name"]) == (
        "CANCELLED",
        "Incomplete",
    )
    message = orders.ended(sweep)["message"]
    assert message.startswith("without a result: alone-base-seed23 (Cancelled: sft: "), message
    assert checkout.git("tag", "--list", "done/alone*") == "done/alone-kl-seed23"


def test_a_sweep_compares_each_change_with_none_seed_by_seed(checkout: Checkout, orders: Orders):
    form: dict[str, Any] = {"overrides": {"kl": {"ppo.kl_coef": 0.24}}, "seeds": [20, 21]}
    assert orders.submit("rlhf-sweep", overrides={}, seeds=[1]).status_code in (409, 422)
    state = orders.ended(orders.order("rlhf-sweep", name="sweep", **form))
    assert (state["name"], state["message"]) == ("Completed", "All 4 runs have a result.")
    for name in ("base-seed20", "kl-seed20", "base-seed21", "kl-seed21"):
        expected = 0.24 if "kl" in name else 0.04
        found = show(checkout, f"done/sweep-{name}", "metrics/rounds/r1.json")["gold"]
        assert found == expected
    body = {"artifacts": {"key": {"any_": ["sweep"]}}}
    (artifact,) = orders.ask("POST", "/artifacts/latest/filter", body).json()
    base, kl = json.loads(artifact["data"])
    assert (base["change"], base["gold score (of 10)"]) == ("base", "0.040")
    # 0.24 - 0.04 with either seed.
    assert kl["gold score (of 10), difference"] == "+0.200 [+0.200, +0.200]"
