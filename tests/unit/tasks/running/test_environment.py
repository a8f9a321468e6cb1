"""What a stage says of the machine that it runs on."""

from pathlib import Path

import pytest

from tasks.running import environment
from tasks.running.environment import processor


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
            "model name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: other\n",
            "AMD EPYC (family 25, model 17)",
        ),
    ],
)
def test_a_processor_is_named_with_its_family_and_model(
    cpuinfo: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cloud providers call every generation "AMD EPYC"; the numbers tell them apart."""
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(environment, "_CPUINFO", tmp_path / "cpuinfo")

    assert processor() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n",
            "560.35.03",
        ),
        ("", "unknown"),
    ],
)
def test_the_driver_is_what_the_kernel_module_calls_itself(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(environment, "_DRIVER", tmp_path / "version")

    assert environment._driver() == expected
