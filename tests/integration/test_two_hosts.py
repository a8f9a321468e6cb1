"""A stage as four processes on two hosts: two network namespaces that only a cable joins.

Needs root and iproute2. The commands are those of docs/how-to/several-gpus.md. One of these tests
is in `make test-long`, the others are in `make test-slow`.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stage_world
from tests.several import (
    SFT,
    TORCHS_SECONDS,
    finish,
    outcome,
    processes_in,
    ranks,
    start,
    time_to_hear,
    wait_for_checkpoint,
)
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.long

LAUNCHER = stage_world.ROOT / "deploy/hosts/launch.sh"
NODES_LAUNCHER = stage_world.ROOT / "deploy/nodes/launch.sh"
PREFIX = "rounds-"


def ip(command: str) -> str:
    done = subprocess.run(["ip", *shlex.split(command)], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {command}: {done.stderr.strip()}")
    return done.stdout


def remove_hosts(*, of_the_dead: bool = False) -> None:
    """This process's namespaces, or those that a killed one has left."""
    for name in (line.split()[0] for line in ip("netns list").splitlines()):
        number = name.removeprefix(PREFIX).partition("-")[0]
        ours = number == str(os.getpid())
        if name.startswith(PREFIX) and (
            ours or (of_the_dead and not Path("/proc", number).exists())
        ):
            ip(f"netns del {name}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with the addresses 10.77.0.1 and 10.77.0.2, each on its `eth0`."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces take Linux, root and iproute2")
    first, second = (f"{PREFIX}{os.getpid()}-{letter}" for letter in "ab")
    try:
        remove_hosts(of_the_dead=True)
        ip(f"netns add {first}")
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        ip(f"netns add {second}")
        ip(f"link add eth0 netns {first} type veth peer name eth0 netns {second}")
        for number, host in enumerate((first, second), start=1):
            ip(f"-n {host} address add 10.77.0.{number}/24 dev eth0")
            ip(f"-n {host} link set lo up")
            ip(f"-n {host} link set eth0 up")
        yield first, second
    finally:
        remove_hosts()


@pytest.fixture
def on_hosts(hosts: tuple[str, str]) -> dict[str, str]:
    """The environment that has a stage's processes start there."""
    commands = " ".join(f"'ip netns exec {host}'" for host in hosts)
    return {
        "RLHF_LAUNCH": f"bash {LAUNCHER} 10.77.0.1:29500 2 {commands}",
        "GLOO_SOCKET_IFNAME": "eth0",
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hosts") / "world"
    stage_world.build(root)
    return root


def long_sft(root: Path) -> None:
    """From here on SFT takes long enough to be disturbed."""
    stage_world.set_params(root, "run", {"processes": 4, "sharded": False})
    stage_world.set_params(root, "sft", {"epochs": 30})


@pytest.fixture(scope="module")
def digest_of_one_host(built: Path, hosts: tuple[str, str]) -> str:
    del hosts  # Where there are none, this is not needed.
    long_sft(built)
    stage_world.forget(built, SFT)
    code, said = finish(built)
    assert code == 0, said
    return stage_world.digest(built, SFT)


@pytest.fixture
def running(
    built: Path, on_hosts: dict[str, str], digest_of_one_host: str
) -> Iterator[subprocess.Popen[str]]:
    """SFT on both hosts, after a checkpoint; afterwards the next run has the same bytes."""
    stage_world.forget(built, SFT)
    process = start(built, **on_hosts, RLHF_CHECKPOINT_STEPS="5")
    try:
        wait_for_checkpoint(built, process)
        yield process
    finally:
        process.kill()
        process.communicate()
    assert processes_in(built) == []
    code, said = finish(built, **on_hosts)
    assert code == 0, said
    assert "sft resumes from its checkpoint at step" in said
    assert stage_world.digest(built, SFT) == digest_of_one_host


@pytest.mark.slow
def test_divided_weights_of_ppo_have_the_bytes_of_one_host(
    built: Path, on_hosts: dict[str, str]
) -> None:
    """First of all here, since another SFT would not be that of the round's responses."""
    stage_world.set_params(built, "run", {"processes": 4, "sharded": True})
    found = []
    for environment in ({}, on_hosts):
        stage_world.forget(built, "ppo@r1")
        code, said = finish(built, "ppo@r1", **environment)
        assert code == 0, said
        found.append(stage_world.digest(built, "ppo@r1"))
    assert found[0] == found[1]


def test_two_hosts_write_the_bytes_of_one(
    built: Path, on_hosts: dict[str, str], digest_of_one_host: str
) -> None:
    stage_world.forget(built, SFT)

    code, said = finish(built, **on_hosts)

    assert code == 0, said
    assert outcome(built)["environment"]["processes"] == 4
    assert stage_world.digest(built, SFT) == digest_of_one_host


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_host_whose_processes_die_ends_the_stage(
    running: subprocess.Popen[str], hosts: tuple[str, str], which: int
) -> None:
    for pid in ip(f"netns pids {hosts[which]}").split():
        os.kill(int(pid), signal.SIGKILL)

    _, said = running.communicate(timeout=PATIENCE_SECONDS)

    assert running.returncode == 1
    parted = "another of the stage's processes has ended", "its first process died"
    assert parted[which == 0] in said


@pytest.mark.slow
@pytest.mark.parametrize(("dead", "deaf"), ["30", "23", "02", "13"])
def test_the_death_of_one_ends_those_that_hear_nothing_on_either_host(
    built: Path, running: subprocess.Popen[str], dead: str, deaf: str
) -> None:
    """0 and 1 are on the first host."""
    found = ranks(built)
    os.kill(found[deaf], signal.SIGSTOP)

    os.kill(found[dead], signal.SIGKILL)
    assert time_to_hear(found[deaf]) < TORCHS_SECONDS
    running.communicate(timeout=PATIENCE_SECONDS)

    assert running.returncode == 1
    assert processes_in(built) == []


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_ends_the_stage(
    built: Path, running: subprocess.Popen[str], hosts: tuple[str, str]
) -> None:
    ip(f"-n {hosts[1]} link set eth0 down")
    try:
        running.communicate(timeout=PATIENCE_SECONDS)
    finally:
        ip(f"-n {hosts[1]} link set eth0 up")

    assert running.returncode == 1
    assert "another of the stage's processes has ended" in outcome(built)["message"]


@pytest.mark.slow
def test_nodes_that_are_given_one_command_write_the_bytes_of_one_host(
    built: Path, hosts: tuple[str, str], digest_of_one_host: str
) -> None:
    """As SkyPilot and an indexed Job give it; here it is one stage in place of the pipeline."""
    stage_world.forget(built, SFT)
    nodes = {"NODES": "2", "FIRST": "10.77.0.1", "PROCESSES": "2", "RUN": "only"}
    outside = {"PYTHONPATH": str(stage_world.ROOT), "RLHF_EXECUTION": "tiny"}
    started = []
    for number, host in enumerate(hosts):
        command = ["ip", "netns", "exec", host, "bash", str(NODES_LAUNCHER)]
        environment = stage_world.environment(
            built, **outside, **nodes, NODE=str(number), GLOO_SOCKET_IFNAME="eth0"
        )
        started.append(
            subprocess.Popen(
                [*command, sys.executable, "-m", f"tasks.{SFT}"], cwd=built, env=environment
            )
        )
    try:
        codes = [process.wait(PATIENCE_SECONDS) for process in started]
        assert processes_in(built) == []
    finally:
        for pid in processes_in(built):
            os.kill(pid, signal.SIGKILL)

    assert codes == [0, 0]
    assert outcome(built)["environment"]["processes"] == 4
    assert stage_world.digest(built, SFT) == digest_of_one_host


@pytest.mark.slow
def test_a_sigterm_reaches_all_through_the_first_host(
    built: Path, running: subprocess.Popen[str]
) -> None:
    running.terminate()
    running.communicate(timeout=PATIENCE_SECONDS)

    assert running.returncode == 143
    assert outcome(built)["status"] == "interrupted"
