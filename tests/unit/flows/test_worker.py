"""What `python -m flows.worker` needs and starts."""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import prefect.server.api
import pytest
from docker.types import HostConfig
from prefect.client.schemas import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings
from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration
from ruamel.yaml import YAML

from flows import servers
from flows.environment import HEARTBEAT_SECONDS
from flows.worker import WorkerError, main, read_variant, worker_command, worker_environment

ROOT = Path(__file__).resolve().parents[3]


def test_a_worker_without_a_server_says_what_it_expects(monkeypatch, capsys):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(["gpu", "--register-only"]) == 2
    assert capsys.readouterr().err.startswith("PREFECT_API_URL: expected the address of Prefect's")


def test_a_worker_in_a_clone_without_remotes_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setattr("os.environ", dict(os.environ))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    assert main(["gpu", "--register-only"]) == 2
    assert "git has no remote" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["prefect-gpu"], "pool: 'prefect-gpu'; expected a name without "),
        (["a/b"], "pool: 'a/b'; expected a name without "),
        (["gpu", "--at-once", "0"], "--at-once: '0'; expected 1 or more"),
    ],
)
def test_a_name_or_number_that_prefect_would_refuse_or_never_serve_is_refused(
    arguments, words, capsys
):
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--register-only"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_flow_runs_of_the_worker_find_the_clone_wherever_they_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = worker_environment(tmp_path)
    assert found["RLHF_CLONE"] == str(tmp_path)
    assert found["PYTHONPATH"] == f"{tmp_path}:/elsewhere"
    assert found["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_jobs_elsewhere_send_heartbeats_as_often_as_the_server_expects_them(monkeypatch, tmp_path):
    """Whatever they run in, they get the settings of the worker."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "200")
    code = (
        "from prefect.workers.base import BaseJobConfiguration as Job\n"
        "print(Job._base_environment()['PREFECT_FLOWS_HEARTBEAT_FREQUENCY'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=worker_environment(tmp_path),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(HEARTBEAT_SECONDS)


def test_prefects_own_worker_knows_the_command():
    command = worker_command("gpu", "process", at_once=2)
    assert command[0] == sys.executable
    done = subprocess.run(
        [*command[:3], "--help"], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin", "HOME": "/nonexistent", "COLUMNS": "200"},
    )  # fmt: skip
    for option in ("--pool", "--type", "--limit", "--install-policy"):
        assert option in command
        assert option in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: docker\n", r"expected the keys type and job_variables, found \['type'\]"),
        ("type: docker\njob_variables:\n", "job_variables: expected a mapping, found NoneType"),
        ("type: [docker]\njob_variables: {}\n", "type: expected a text, found list"),
        ("- docker\n", "found list"),
        ("type: [", "variant.yaml: "),
    ],
)
def test_a_variant_that_is_none_is_refused(text, message, tmp_path):
    (tmp_path / "variant.yaml").write_text(text)
    with pytest.raises(WorkerError, match=message):
        read_variant(tmp_path / "variant.yaml")


# --- The variants that the repository has --------------------------------------------------------


BEYOND = {
    # Of prefect-docker 0.7.4, newer than what Prefect's server lists.
    "docker": {"container_create_kwargs"},
    # Of prefect-slurm 0.1.7, which is somebody else's and not listed.
    "slurm": {"cpu", "env", "memory", "partition", "source_files", "time_limit", "working_dir"},
}


def schema_of(kind: str) -> dict[str, Any]:
    """Of the variables that a pool of this type takes, as Prefect's server lists them."""
    path = Path(prefect.server.api.__file__).parent
    listed = json.loads(
        (path / "collections_data/views/aggregate-worker-metadata.json").read_text()
    )
    for workers in listed.values():
        if kind in workers:
            return dict(workers[kind]["default_base_job_configuration"]["variables"])
    return {"properties": {}}


def test_there_is_a_variant_for_each_kind_of_machine():
    names = {path.stem for path in (ROOT / "deploy/pools").glob("*.yaml")}
    assert names == {"process", "docker", "kubernetes", "slurm"}


@pytest.mark.parametrize("name", ["process", "docker", "kubernetes", "slurm"])
def test_a_variant_sets_what_its_pool_takes(name: str):
    variant = read_variant(ROOT / f"deploy/pools/{name}.yaml")
    template = variant.base_job_template
    schema = schema_of(name) if template is None else template["variables"]
    assert variant.type == name
    assert set(variant.job_variables) <= set(schema["properties"]) | BEYOND.get(name, set())
    jsonschema.validate(variant.job_variables, schema)


def test_the_job_of_kubernetes_is_filled_from_its_variables_and_asks_for_a_gpu():
    variant = read_variant(ROOT / "deploy/pools/kubernetes.yaml")
    template = variant.base_job_template
    assert template is not None
    variables, job = template["variables"]["properties"], template["job_configuration"]
    named = set(re.findall(r"{{ (\w+) }}", json.dumps(job)))
    assert named == set(variables)
    values = {key: entry.get("default", key) for key, entry in variables.items()}
    filled = apply_values(job, {**values, **variant.job_variables})
    manifest = filled["job_manifest"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    assert container["image"] == "rlhf-rounds:cuda"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1, "memory": "32Gi"}
    assert manifest["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    # What prefect-kubernetes 0.8.0 requires of a manifest, beside what it fills in itself.
    assert manifest["spec"]["template"]["spec"]["parallelism"] == 1
    assert manifest["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    mounted = {volume["name"] for volume in manifest["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == mounted


def test_prefect_and_kubernetes_take_the_job():
    """Each by its own schema, but for two keys that the one wants where the other has none."""
    worker = pytest.importorskip("prefect_kubernetes.worker", reason="no prefect-kubernetes")
    schema = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate")
    variant = read_variant(ROOT / "deploy/pools/kubernetes.yaml")
    template = variant.base_job_template
    assert template is not None
    variables = template["variables"]["properties"]
    values = {key: entry["default"] for key, entry in variables.items() if "default" in entry}
    filled = apply_values(
        template["job_configuration"],
        {**values, **variant.job_variables, "name": "ppo", "command": "python"},
    )
    worker.KubernetesWorkerJobConfiguration(**filled)
    manifest = filled["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    del pod["parallelism"], pod["completions"]
    # The worker makes lists of these.
    pod["containers"][0] |= {"env": [{"name": "A", "value": "b"}], "args": ["python"]}
    schema.validate(manifest, "1.31", strict=True)


def test_prefect_slurm_makes_a_job_of_the_variant():
    """In hours, GB and their units for Slurm; run where the package is installed."""
    config = pytest.importorskip("prefect_slurm.config", reason="no prefect-slurm")
    variables = read_variant(ROOT / "deploy/pools/slurm.yaml").job_variables
    config.SlurmWorkerTemplateVariables(**variables)
    assert set(variables) <= set(config.SlurmWorkerTemplateVariables.model_fields)
    run = FlowRun(id=uuid.uuid4(), name="ppo@r1", flow_id=uuid.uuid4())
    asked = config.SlurmWorkerConfiguration(**variables, command="python -m it")
    asked.prepare_for_flow_run(run)

    job = asked.get_slurm_job_spec(run)["job"]

    assert job["script"].splitlines()[1:] == ["source deploy/slurm/environment.sh", "python -m it"]
    assert (job["partition"], job["cpus_per_task"]) == ("gpu", 8)
    assert job["memory_per_node"]["number"] == 64 * 1024
    assert job["time_limit"]["number"] == 24 * 60
    assert job["current_working_directory"] == "/shared/rlhf-rounds"


@pytest.mark.parametrize("name", ["docker", "kubernetes"])
def test_a_container_is_of_our_image_and_its_file_has_no_secret(name: str):
    variables = read_variant(ROOT / f"deploy/pools/{name}.yaml").job_variables
    assert variables["image"] == "rlhf-rounds:cuda"
    ours = {key for key, value in variables["env"].items() if value is not None}
    assert {key for key in ours if not key.startswith("GIT_CONFIG_")} == {
        "MLFLOW_TRACKING_URI", "PREFECT_HOME"
    }  # fmt: skip
    # Prefect hands the worker's own on, a folder of another machine.
    assert variables["env"]["PREFECT_HOME"].startswith("/home/rlhf/")


def test_a_job_of_kubernetes_has_the_password_from_its_secret_and_not_in_clear():
    variant = read_variant(ROOT / "deploy/pools/kubernetes.yaml")
    assert variant.base_job_template is not None
    asked = BaseJobConfiguration(env=variant.job_variables["env"])
    with temporary_settings({PREFECT_API_AUTH_STRING: "s3cret"}):
        asked.prepare_for_flow_run(FlowRun(id=uuid.uuid4(), name="ppo@r1", flow_id=uuid.uuid4()))
    assert "s3cret" not in str(asked.env)
    assert asked.env["MLFLOW_TRACKING_URI"]
    job = variant.base_job_template["job_configuration"]["job_manifest"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "rlhf-rounds"}}]


def test_docker_takes_the_arguments_for_a_gpu():
    variant = read_variant(ROOT / "deploy/pools/docker.yaml")
    arguments = dict(variant.job_variables["container_create_kwargs"])
    host = HostConfig(version="1.41", **arguments)
    (request,) = host["DeviceRequests"]
    assert (request["Count"], request["Capabilities"]) == (1, [["gpu"]])
    assert host["ShmSize"] == 2 * 1024**3


def test_a_container_reaches_the_servers_of_make_ui_and_git_reads_its_credentials(tmp_path: Path):
    variables = read_variant(ROOT / "deploy/pools/docker.yaml").job_variables
    # They listen on 127.0.0.1, and refuse every other name.
    assert variables["network_mode"] == "host"
    assert variables["env"]["MLFLOW_TRACKING_URI"] == f"http://127.0.0.1:{servers.MLFLOW_PORT}"
    mounted = [volume.split(":")[1] for volume in variables["volumes"]]
    assert "/home/rlhf/.git-credentials" in mounted
    credentials = tmp_path / ".git-credentials"
    credentials.write_text("https://worker:s3cret@git.example.org\n")
    credentials.chmod(0o400)
    done = subprocess.run(
        ["git", "credential", "fill"], input="url=https://git.example.org/rounds.git\n\n",
        env={**variables["env"], "PATH": "/usr/bin:/bin", "HOME": str(tmp_path),
             "GIT_TERMINAL_PROMPT": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "password=s3cret" in done.stdout.splitlines(), done.stderr


# --- Slurm and SkyPilot --------------------------------------------------------------------------


def test_the_files_of_slurm_are_shell_and_start_our_worker():
    for name in ("worker.sbatch", "environment.sh", "launch.sh"):
        subprocess.run(["bash", "-n", str(ROOT / "deploy/slurm" / name)], check=True)
    text = (ROOT / "deploy/slurm/worker.sbatch").read_text()
    assert '\npython -m flows.worker "${RLHF_GPU_POOL:-gpu}" &\n' in text
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE))
    assert options["gres"] == "gpu:1"
    assert options["signal"] == "B:INT@120", "nobody would write a checkpoint"
    variant = read_variant(ROOT / "deploy/pools/slurm.yaml")
    assert variant.job_variables["source_files"] == ["deploy/slurm/environment.sh"]
    assert variant.job_variables["env"] == {"MLFLOW_TRACKING_URI": "http://LOGIN_NODE:5000"}


def test_a_job_of_slurm_sees_what_a_worker_sets_for_its_processes(tmp_path: Path):
    beat = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
    script = f". {ROOT}/deploy/slurm/environment.sh; echo $RLHF_CLONE $PYTHONPATH; printenv {beat}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env={"PATH": "/usr/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path), str(tmp_path), str(HEARTBEAT_SECONDS)]


def test_a_job_of_slurm_has_a_folder_that_nobody_else_can_have_made(tmp_path: Path):
    """Prefect reads settings from its home and runs what they name."""
    script = f". {ROOT}/deploy/slurm/environment.sh; echo $PREFECT_HOME; echo $DVC_SITE_CACHE_DIR"

    def folders() -> list[Path]:
        done = subprocess.run(
            ["bash", "-euc", script], env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [Path(line).parent for line in done.stdout.splitlines()]

    one, other = folders(), folders()
    assert len(set(one)) == len(set(other)) == 1
    assert one[0] != other[0]
    assert (one[0].parent, one[0].stat().st_mode & 0o777) == (tmp_path, 0o700)


def test_the_task_of_skypilot_clones_sets_up_and_works_for_the_pool():
    task = YAML(typ="safe").load(ROOT / "deploy/skypilot.yaml")
    assert set(task) == {"name", "resources", "envs", "secrets", "setup", "run"}
    assert task["run"].rstrip().endswith("exec .venv/bin/python -m flows.worker gpu")
    for text in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        used = set(re.findall(r"\$([A-Z_]+)", text))
        assert used <= set(task["envs"]) | set(task["secrets"])
    assert all(value is None for value in task["secrets"].values()), "a secret in the file"
    assert re.search(r"^setup:", (ROOT / "Makefile").read_text(), re.MULTILINE)
