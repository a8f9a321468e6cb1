"""What a checkpoint's fingerprint depends on."""

from pathlib import Path
from typing import Any

import pytest

from tasks.running.fingerprint import Identity, differences, fingerprint, identify

HERE = {"bits": "portable", "processor": "A", "torch": "2.13.0", "device": "cpu"}


def identity(**environment: Any) -> Identity:
    return identify(
        Path("/nowhere"), "ppo@r1", params={}, inputs=(), environment=HERE | environment
    )


def test_with_portable_bits_another_processor_is_the_same_run() -> None:
    assert fingerprint(identity(processor="B")) == fingerprint(identity())
    assert differences(identity(processor="B"), identity()) == ""


@pytest.mark.parametrize("bits", ["native", "this processor's own"])
def test_with_other_bits_another_processor_is_another_run(bits: str) -> None:
    here, there = identity(bits=bits), identity(bits=bits, processor="B")

    assert fingerprint(there) != fingerprint(here)
    assert differences(there, here) == "environment processor (B, now A)"


@pytest.mark.parametrize(
    "changed",
    [
        {"bits": "native"},
        {"torch": "2.14.0"},
        {"device": "cuda", "gpu": "X", "driver": "550.54.15", "cuda": "12.4"},
    ],
)
def test_other_bits_packages_and_devices_are_other_runs(changed: dict[str, str]) -> None:
    assert fingerprint(identity(**changed)) != fingerprint(identity())


def test_another_number_of_processes_may_go_on_from_the_same_checkpoint() -> None:
    """Only within rounding, which `resuming` says."""

    def of(processes: int) -> Identity:
        params = {"run": {"processes": processes, "seed": 0}}
        environment = HERE | {"processes": processes}
        return identify(
            Path("/nowhere"), "ppo@r1", params=params, inputs=(), environment=environment
        )

    assert fingerprint(of(1)) == fingerprint(of(2))
    assert of(2)["made_on"]["processes"] == 2


def test_weights_that_are_divided_may_go_on_from_the_same_checkpoint() -> None:
    def of(sharded: bool) -> Identity:
        params = {"run": {"sharded": sharded, "seed": 0}}
        environment = HERE | ({"sharded": True} if sharded else {})
        return identify(
            Path("/nowhere"), "ppo@r1", params=params, inputs=(), environment=environment
        )

    assert fingerprint(of(True)) == fingerprint(of(False))
    assert of(True)["made_on"]["sharded"]


def test_another_driver_of_the_gpu_is_another_run() -> None:
    gpu = {"device": "cuda", "gpu": "X", "driver": "550.54.15", "cuda": "12.4"}

    here, there = identity(**gpu), identity(**gpu | {"driver": "560.35.03"})
    assert differences(there, here) == "environment driver (560.35.03, now 550.54.15)"


def test_a_checkpoint_names_the_processor_all_the_same() -> None:
    assert identity()["made_on"]["processor"] == "A"
