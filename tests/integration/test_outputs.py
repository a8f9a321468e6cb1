"""DVC's outputs hold results only: which Python wrote them stands in outcome.json and MLflow."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from tasks.running.environment import PACKAGES
from tests import stage_world

OTHER = "3.11.98"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("outputs") / "world"
    stage_world.build(root)
    return root


def outputs(root: Path) -> dict[str, bytes]:
    paths = [
        p for outs in stage_world.OUTPUTS.values() for out in outs for p in (root / out).rglob("*")
    ]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in paths if p.is_file()}


def test_no_output_names_the_version_of_python_or_of_a_package(world: Path) -> None:
    found = outputs(world)
    assert len(found) > 20
    python = platform.python_version().encode()
    assert [path for path, content in found.items() if python in content] == []
    packages = [version(name).encode() for name in PACKAGES]
    naming = [path for path, content in found.items() if any(each in content for each in packages)]
    assert naming == []


def test_the_outcome_says_what_a_stage_ran_on(world: Path) -> None:
    outcome = json.loads((world / ".work/sft/outcome.json").read_text())

    environment = outcome["environment"]
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next(line for line in cpuinfo.splitlines() if line.startswith("model name"))
    assert model.partition(":")[2].strip() in environment.pop("processor")
    assert environment == {
        "bits": "portable",
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        **{name: version(name) for name in PACKAGES},
        "threads": 1,
        "processes": 1,
        "precision": "float32",
        "device": "cpu",
    }


def test_the_tags_for_mlflow_say_it_too(world: Path) -> None:
    (started,) = (world / ".work/spool").glob("sft/*/start.json")

    tags = json.loads(started.read_text())["tags"]
    assert tags["environment.torch"] == version("torch")
    assert tags["environment.python"] == platform.python_version()


def test_another_patch_release_of_python_gives_the_same_bytes(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stage_world.digest(world, "ppo@r1")
    stage_world.forget(world, "ppo@r1")
    monkeypatch.setattr(platform, "python_version", lambda: OTHER)

    assert stage_world.run(world, "ppo@r1") == 0

    assert stage_world.digest(world, "ppo@r1") == before
