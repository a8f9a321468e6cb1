"""Stages that are forks of a process which has imported torch: what they are and are not."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tasks.running.fork_server import GPUS
from tasks.running.forked import INTERRUPTED, STATUS, interpreter
from tasks.running.outcome import EXIT_CODES
from tests.integration.fork_world import (
    ADDRESS,
    AFTER_LIBRARIES,
    drive,
    edit,
    said,
    serving,
    start,
    world_fixture,  # noqa: F401
)
from tests.waiting import PATIENCE_SECONDS, eventually, is_alive


@pytest.mark.long
@pytest.mark.skipif(any(path.exists() for path in GPUS), reason="not where there is a GPU")
def test_stages_of_a_run_are_forks_with_torch_if_they_need_it(world: Path) -> None:
    edit(world, AFTER_LIBRARIES, "\n")
    assert drive(world, {"sft": "0", "label": "00"}).wait() == 0
    forked, alone = said(world, "0"), said(world, "00")
    assert (forked["torch"], alone["torch"]) == (True, False)
    assert forked["environment"]["RLHF_STARTED_BY"] == str(alone["parent"])  # dvc
    assert forked["argv"] == ["0"]
    assert forked["name"] == "__main__"
    for stage in (forked, alone):
        assert "RLHF_FORK_SERVER" not in stage["environment"]
        assert stage["environment"]["MKL_CBWR"] == "AVX2,STRICT"
    assert not is_alive(forked["parent"])

    assert drive(world, {"sft": "0"}, "--single-item", "--force", "sft").wait() == 0
    assert not said(world, "0")["torch"]


@pytest.mark.parametrize("wanted", ["0", "3", "-15", "-6", "-9"])
def test_it_ends_as_its_stage_does(world: Path, wanted: str) -> None:
    with serving(world) as server:
        process = start(world, wanted)
        process.communicate()
    assert process.returncode == int(wanted)
    assert said(world, wanted)["parent"] == server.pid


@pytest.mark.parametrize(
    ("wanted", "err"), [("words", "these words\n"), ("error", "ValueError: an error\n")]
)
def test_what_it_ends_with_is_shown_as_python_shows_it(world: Path, wanted: str, err: str) -> None:
    with serving(world):
        process = start(world, wanted)
        said = process.communicate()[1]
    assert (process.returncode, said[-len(err) :]) == (1, err)


def test_work_at_exit_is_done(world: Path) -> None:
    with serving(world):
        out, _ = start(world, "atexit").communicate()
    assert out == "a thread\nat exit\n"


def test_its_streams_are_those_of_the_stage(world: Path) -> None:
    with serving(world):
        out, err = start(world, "echo").communicate("text")
    assert (out, err) == ("TEXT", "to stderr")
    # Nothing else is open: who asks later would wait at a socket that a fork had kept.
    assert [name.partition(":")[0] for name in said(world, "echo")["open"]] == ["pipe"] * 3


def test_a_stage_runs_the_code_that_is_there_when_it_begins(world: Path) -> None:
    with serving(world):
        start(world, "0").communicate()
        first = said(world, "0")
        with (world / "tasks/running/signals.py").open("a") as code:  # The server has imported it.
            code.write("\nVALUE = 2\n")
        start(world, "0").communicate()
        second = said(world, "0")
    assert (first["value"], second["value"]) == (None, 2)
    assert first["parent"] == second["parent"]


def test_under_other_variables_a_stage_runs_alone(world: Path) -> None:
    with serving(world) as server:
        process = start(world, "0", OMP_NUM_THREADS="7", DVC_ROOT="x", RLHF_EXECUTION="y")
        process.communicate()
        assert process.returncode == 0
        assert said(world, "0")["pid"] == process.pid
        start(world, "0", DVC_ROOT="x", RLHF_EXECUTION="y").communicate()
    assert said(world, "0")["parent"] == server.pid
    assert said(world, "0")["environment"]["RLHF_EXECUTION"] == "y"


def test_variables_that_no_library_reads_are_those_of_the_stage(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_RUN", "of the server")
    monkeypatch.setenv("PREFECT_HOME", "of the server")
    with serving(world) as server:
        monkeypatch.delenv("MLFLOW_RUN")
        start(world, "0", PREFECT_HOME="of the stage", MLFLOW_TIMEOUT="1").communicate()
    found = said(world, "0")
    assert found["parent"] == server.pid
    kept = found["environment"]
    assert "MLFLOW_RUN" not in kept
    assert (kept["PREFECT_HOME"], kept["MLFLOW_TIMEOUT"]) == ("of the stage", "1")


def test_with_other_bits_a_stage_runs_alone(world: Path) -> None:
    with serving(world):
        start(world, "0").communicate()  # The server has its bits now.
        (world / "params.yaml").write_text("run: {bits: native}\n")
        process = start(world, "0")
        process.communicate()
    assert said(world, "0")["pid"] == process.pid
    assert said(world, "0")["environment"]["MKL_CBWR"] == "AUTO,STRICT"


def test_an_interrupt_has_the_code_that_it_has_in_outcomes() -> None:
    assert EXIT_CODES["interrupted"] == INTERRUPTED


def test_without_a_server_a_stage_runs_alone(world: Path) -> None:
    process = start(world, "0")
    process.communicate()
    assert process.returncode == 0
    assert said(world, "0")["pid"] == process.pid


@pytest.mark.parametrize(
    "changed", [{"folder": "/"}, {"interpreter": "python"}, {"unheard_of": 1}, {"module": None}]
)
def test_what_it_cannot_become_it_refuses_and_serves_on(
    world: Path, changed: dict[str, Any]
) -> None:
    with serving(world) as server:
        start(world, "0").communicate()
        whole = acceptable(world)
        asked = {name: value for name, value in (whole | changed).items() if value is not None}
        assert answer(asked) == b""
        assert STATUS.unpack(answer(whole)) == (os.getsid(server.pid),)
        eventually((world / "out" / "1.json").exists)
        assert said(world, "1")["parent"] == server.pid


def acceptable(world: Path) -> dict[str, Any]:
    """What a process may ask for in which stage 0 has run."""
    return {
        "module": "tasks.sft",
        "arguments": ["1"],
        "folder": str(world),
        "interpreter": interpreter(),
        "environment": said(world, "0")["environment"],
        "interruptible": True,
    }


def answer(asked: dict[str, Any]) -> bytes:
    """What the server says first."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.connect(f"\0{ADDRESS}")
        try:
            socket.send_fds(own, [json.dumps(asked).encode()], [0, 1, 2])
            first = own.recv(100)
            if first:
                own.recv(100)  # the end
        except ConnectionError:
            return b""
        return first


def test_packages_that_are_installed_meanwhile_are_not_the_servers(world: Path) -> None:
    packages = world / "packages"
    packages.mkdir()
    edit(world, 'Path(sysconfig.get_path("purelib"))', f"Path({str(packages)!r})")
    with serving(world) as server:
        start(world, "0").communicate()
        assert said(world, "0")["parent"] == server.pid
        (packages / "torch-3.dist-info").mkdir()
        process = start(world, "0")
        process.communicate()
    assert said(world, "0")["pid"] == process.pid


def test_there_is_no_server_beside_a_gpu(world: Path) -> None:
    edit(world, AFTER_LIBRARIES, AFTER_LIBRARIES.replace("()", "(Path('/proc'),)", 1))
    with serving(world) as server:
        assert server.wait(PATIENCE_SECONDS) == 0
        process = start(world, "0")
        process.communicate()
    assert said(world, "0")["pid"] == process.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_it_forks_for_nobody_else(world: Path) -> None:
    with serving(world) as server:
        start(world, "0").communicate()
        asked = acceptable(world)
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.setuid(65534)
                code = 0 if answer(asked) == b"" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        start(world, "00").communicate()
        assert said(world, "00")["parent"] == server.pid
    assert not (world / "out" / "1.json").exists()
