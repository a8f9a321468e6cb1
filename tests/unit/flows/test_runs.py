"""Which runs are ordered again once people have labelled a round, as Prefect is asked for them."""

from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows import runs
from tasks.workspace.driver_lock import Driver, sole_use
from tasks.workspace.files import write_json

Ordered = list[tuple[str, str, str]]


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> Ordered:
    """Name, last stage and idempotency key of each order; no server is there."""
    found: Ordered = []

    def order(deployment: str, *, parameters: dict[str, str], **options: Any) -> None:
        assert (deployment, options["tags"]) == ("rlhf/rlhf", ["round-labelled"])
        found.append((parameters["name"], parameters["until"], options["idempotency_key"]))

    monkeypatch.setattr(runs, "run_deployment", order)
    return found


def note(root: Path, name: str, waits: bool, until: str | None = None) -> Path:
    workspace = root / ".work/runs" / name
    (workspace / ".work").mkdir(parents=True, exist_ok=True)
    write_json(workspace / runs.NOTE, {"until": until, "waits": waits})
    return workspace


def test_runs_that_wait_are_ordered_and_no_others(tmp_path: Path, ordered: Ordered) -> None:
    note(tmp_path, "ends", waits=False)
    note(tmp_path, "waits", waits=True, until="ppo@r2")
    assert runs.order_waiting(tmp_path) == ["waits"]
    assert [order[:2] for order in ordered] == [("waits", "ppo@r2")]


def test_a_run_that_goes_on_waits_once_it_is_killed_and_is_not_ordered_before(
    tmp_path: Path, ordered: Ordered
) -> None:
    workspace = note(tmp_path, "goes-on", waits=True)
    with sole_use(workspace, Driver(name="flow run goes-on", flow_run="one")):
        assert runs.order_waiting(tmp_path) == []
    assert runs.order_waiting(tmp_path) == ["goes-on"]
    assert len(ordered) == 1


def test_a_run_that_looked_before_the_round_was_done_orders_itself(
    tmp_path: Path, ordered: Ordered
) -> None:
    workspace = note(tmp_path, "looks", waits=False)  # It works, and has found a label missing.
    assert runs.order_waiting(tmp_path) == []
    note(tmp_path, "looks", waits=True)
    runs.continue_if_labelled(workspace)
    assert [order[:2] for order in ordered] == [("looks", "")]


def test_a_run_that_waits_for_labels_that_nobody_gave_meanwhile_does_not(
    tmp_path: Path, ordered: Ordered
) -> None:
    runs.continue_if_labelled(note(tmp_path, "waits", waits=True))
    runs.order_waiting(tmp_path)
    ordered.clear()
    runs.continue_if_labelled(note(tmp_path, "waits", waits=False))
    assert ordered == []


def test_a_run_that_is_ordered_from_both_sides_is_ordered_once(
    tmp_path: Path, ordered: Ordered
) -> None:
    workspace = note(tmp_path, "waits", waits=True)
    runs.order_waiting(tmp_path)
    runs.continue_if_labelled(workspace)
    runs.order_waiting(tmp_path)
    first, same, later = (key for _, _, key in ordered)
    assert first == same != later


def test_a_run_goes_on_without_what_people_have_made_the_defaults_of_its_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect's server puts what an order names over the defaults, which may be other people's."""
    defaults = {
        "name": "nightly", "revision": "main", "recipe": "no_kl", "rounds": 9, "until": "sft",
        "overrides": {"ppo.kl_coef": 0.2}, "wait_for_people": "yes", "seeds": [0, 1],
    }  # fmt: skip
    taken: list[dict[str, Any]] = []

    def order(_deployment: str, *, parameters: dict[str, Any], **_options: Any) -> None:
        taken.append(defaults | parameters)

    monkeypatch.setattr(runs, "run_deployment", order)
    note(tmp_path, "waits", waits=True, until="ppo@r2")
    runs.order_waiting(tmp_path)
    assert taken == [
        {
            "name": "waits", "revision": "", "recipe": "", "rounds": None, "until": "ppo@r2",
            "overrides": {}, "wait_for_people": "as params.yaml says", "seeds": [],
        }
    ]  # fmt: skip


def test_a_seed_among_the_overrides_beside_seeds_is_refused() -> None:
    """The runs of the seeds would all have that one."""
    for seeds in ([1], [1, 2]):
        state = runs.run.fn(name="mine", overrides={"run.seed": 7}, seeds=seeds)
        assert (state.name, state.message) == (
            "BadInput",
            "overrides: run.seed is what the field `seeds` sets; leave out one of the two",
        )


def test_names_that_get_too_long_with_a_seed_are_refused_before_a_run_is_ordered() -> None:
    away = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(away):
        state = runs.order_for_each([1, 10, 100], "n" * 74, {})
    assert (state.name, state.message) == (
        "BadInput",
        f"name: {'n' * 74}-seed10 has more than 80 characters; choose a shorter one\n"
        f"name: {'n' * 74}-seed100 has more than 80 characters; choose a shorter one",
    )
