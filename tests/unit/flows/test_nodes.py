"""Files that give several nodes one command say to each of them who it is."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/nodes"
NAMES = {"NODES", "NODE", "FIRST", "PROCESSES", "RUN"}
COMMAND = ["bash", "deploy/nodes/launch.sh", "python", "-m", "tasks.repro"]


def documents(name: str) -> list[Any]:
    return list(YAML(typ="safe").load_all(FOLDER / name))


def test_the_launcher_asks_for_what_the_files_give_and_for_nothing_else():
    text = (FOLDER / "launch.sh").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(FOLDER / "launch.sh")], check=True)
    asked = set(re.findall(r"\$\{?([A-Z][A-Z_]+)\b(?!:-)", text))
    assert asked - {"PWD", "OMP_NUM_THREADS"} == NAMES


def test_a_node_that_comes_before_the_first_one_waits_for_it(tmp_path: Path):
    def node(number: int) -> subprocess.Popen[bytes]:
        given = {"NODES": "2", "FIRST": "10.0.0.1", "PROCESSES": "1", "RUN": "only"}
        return subprocess.Popen(
            ["bash", FOLDER / "launch.sh", "true"],
            cwd=tmp_path,
            env={**given, "NODE": str(number), "PATH": "/usr/bin:/bin"},
        )

    second = node(1)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1.5)  # It has looked for orders twice.

        assert node(0).wait(PATIENCE_SECONDS) == 0
        assert second.wait(PATIENCE_SECONDS) == 0
    finally:
        second.kill()


def test_the_task_of_skypilot_tells_its_second_node_who_it_is(tmp_path: Path):
    (task,) = documents("skypilot.yaml")
    subprocess.run(["bash", "-n"], input=task["setup"], text=True, check=True)
    assert task["num_nodes"] == 2
    launcher = tmp_path / "deploy/nodes/launch.sh"
    launcher.parent.mkdir(parents=True)
    launcher.write_text('echo "$NODES|$NODE|$FIRST|$PROCESSES|$RUN|$*"')

    done = subprocess.run(
        ["bash", "-c", task["run"].replace("/shared/rounds", str(tmp_path))],
        env={
            "PATH": "/usr/bin:/bin",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NODE_RANK": "1",
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "8",
            "SKYPILOT_TASK_ID": "sky-2026_rlhf-nodes_1",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "2|1|10.0.0.1|8|sky-2026_rlhf-nodes_1|python -m tasks.repro\n"


def test_the_pods_of_the_job_find_the_first_one_by_its_name():
    service, job = documents("kubernetes.yaml")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {each["name"]: each for each in container["env"]}

    assert container["args"] == COMMAND
    assert given.keys() == NAMES
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(given["NODES"]["value"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(given["PROCESSES"]["value"])
    # An indexed pod is called after its Job, below the service that selects it.
    assert given["FIRST"]["value"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    selected = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selected,
    }
    claimed = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claimed


@pytest.mark.parametrize("number", [0, 1])
def test_kubernetes_takes_the_files(number: int):
    schema = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate")
    schema.validate(documents("kubernetes.yaml")[number], "1.31", strict=True)
