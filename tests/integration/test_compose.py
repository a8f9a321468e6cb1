"""compose.yaml without a container engine: what it starts exists, and nothing is open by default.

tests/integration/test_team_servers.py runs the same servers as local processes (make test-team).
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from ruamel.yaml import YAML

from feedback.__main__ import _parser
from flows import servers
from tests.stage_world import environment

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = YAML(typ="safe").load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("buckets", "mlflow", "prefect", "page", "worker", "worker-gpu")
ONCE = ("buckets", "backup")
"""Services that do one thing and end."""
VARIABLE = re.compile(r"(?<!\$)\$\{?(\w+)(:[?-][^}]*)?\}?")


def example() -> dict[str, str]:
    """Name -> value of .env.example."""
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    lines = [line.partition("=") for line in text.splitlines() if line and line[0] != "#"]
    return {name: value for name, _, value in lines}


def words(service: str) -> list[str]:
    """The command of a service, that of a shell in it included, with `$$` as the shell sees it."""
    command = SERVICES[service]["command"].replace("$$", "$")
    found = shlex.split(re.sub(VARIABLE, "label.example", command))
    return shlex.split(found[-1]) if found[:2] == ["bash", "-euc"] else found


def in_environment(service: str, name: str) -> str:
    return str(SERVICES[service]["environment"][name])


def test_there_is_a_service_for_each_server_and_a_worker_of_either_kind():
    assert set(SERVICES) == {*OURS, "postgres", "store", "proxy", "backup"}
    assert {name: SERVICES[name].get("profiles") for name in SERVICES} == {
        **dict.fromkeys(SERVICES), "worker": ["cpu"], "worker-gpu": ["gpu"], "backup": ["backup"],
    }  # fmt: skip
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_images_of_others_are_pinned_to_a_release_and_ours_are_built_from_here():
    for name, service in SERVICES.items():
        if name in OURS:
            assert service["image"].startswith("rlhf-rounds:team")
            assert service["build"]["dockerfile"] == "deploy/team.Dockerfile"
            assert service["init"], "nobody buries the dead"
        else:
            assert re.fullmatch(r"[\w/]+:v?\d+(\.\d+)+(-\w+)?", service["image"]), service["image"]


def test_nothing_has_a_default_password():
    """Every variable is required, or optional and empty; none that is secret has a value."""
    used = dict(VARIABLE.findall(TEXT))
    assert set(used) == set(example()) - {"COMPOSE_PROFILES"}
    optional = {name: rest for name, rest in used.items() if not rest.startswith(":?")}
    assert optional == {"RLHF_GIT_REMOTE": ":-", "RLHF_NOTIFY_URL": ":-"}
    assert {name: value for name, value in example().items() if value} == {
        "COMPOSE_PROFILES": "cpu"
    }


def test_only_the_proxy_is_open_to_other_machines():
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert ports == {
        "mlflow": ["127.0.0.1:5000:5000"],
        "prefect": ["127.0.0.1:4200:4200"],
        "proxy": ["80:80", "443:443"],
    }
    assert not [s for s in SERVICES.values() if s.get("network_mode") or s.get("privileged")]


def test_our_services_send_nothing_home():
    for name in OURS:
        assert in_environment(name, "DO_NOT_TRACK") == "1"
        assert in_environment(name, "PREFECT_SERVER_ANALYTICS_ENABLED") == "false"


@pytest.mark.parametrize("name", OURS)
def test_commands_name_modules_and_files_that_exist(name: str):
    command = words(name)
    if "-m" in command:
        module = command[command.index("-m") + 1]
        assert importlib.util.find_spec(module) is not None
    else:
        assert (ROOT / command[1]).is_file()


def test_mounted_files_exist_but_for_the_people_whom_the_reader_enters():
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    sources = [each["source"] if isinstance(each, dict) else each.split(":")[0] for each in mounts]
    assert set(sources) - set(COMPOSE["volumes"]) == {
        "./deploy/databases.sh", "./deploy/Caddyfile", "./deploy/people", "./deploy/backup.sh",
        "./backups",
    }  # fmt: skip
    files = [s for s in sources if s.startswith("./deploy/") and s != "./deploy/people"]
    assert all((ROOT / file).is_file() for file in files)


@pytest.mark.parametrize("name", ["databases.sh", "worker.sh", "backup.sh"])
def test_scripts_are_bash(name: str):
    subprocess.run(["bash", "-n", f"deploy/{name}"], cwd=ROOT, check=True)


def test_whatever_stays_up_has_a_health_check_and_is_waited_for():
    assert {name for name in SERVICES if "healthcheck" not in SERVICES[name]} == set(ONCE)
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            once = needed in ONCE
            expected = "service_completed_successfully" if once else "service_healthy"
            assert how == {"condition": expected}


@pytest.mark.parametrize("name", ["mlflow", "prefect"])
def test_the_servers_stand_behind_the_guard_under_the_names_that_are_used(name: str):
    variable = "PREFECT_API_URL" if name == "prefect" else "MLFLOW_TRACKING_URI"
    address = urlsplit(in_environment("worker", variable))
    assert words(name) == [
        "python", "-m", "flows.guarded", name,
        "--host", "0.0.0.0", "--port", str(address.port), "--address", address.netloc,
    ]  # fmt: skip


def test_each_service_has_a_database_of_its_own():
    addresses = {
        "prefect": in_environment("prefect", "PREFECT_API_DATABASE_CONNECTION_URL"),
        "mlflow": in_environment("mlflow", "MLFLOW_TRACKING_URI"),
        "labels": in_environment("worker", "RLHF_FEEDBACK_STORE"),
    }
    assert in_environment("page", "RLHF_FEEDBACK_STORE") == addresses["labels"]
    for name, address in addresses.items():
        parts = urlsplit(VARIABLE.sub("password", address))
        assert (parts.username, parts.hostname, parts.path) == (name, "postgres", f"/{name}")
        assert f"{name.upper()}_DB_PASSWORD" in SERVICES["postgres"]["environment"]
    script = (ROOT / "deploy/databases.sh").read_text(encoding="utf-8")
    assert f"for name in {' '.join(addresses)};" in script


def test_postgresql_may_read_the_script_of_a_clone_that_is_for_its_owner_only(tmp_path: Path):
    """Its user is another one than whoever has cloned; `tmp_path` is the container's root."""
    service = SERVICES["postgres"]
    (target,) = [m.split(":")[1] for m in service["volumes"] if m.startswith("./deploy/databases")]
    scripts, commands = tmp_path / "docker-entrypoint-initdb.d", tmp_path / "bin"
    for folder in (scripts, commands):
        folder.mkdir()
    mounted = tmp_path / target.lstrip("/")
    mounted.write_bytes((ROOT / "deploy/databases.sh").read_bytes())
    mounted.chmod(0o700)
    (commands / "docker-entrypoint.sh").write_text('#!/bin/sh\necho "$@" > "$STARTED"\n')
    (commands / "docker-entrypoint.sh").chmod(0o755)
    paths = {path: f"{tmp_path}{path}" for path in (target, "/docker-entrypoint-initdb.d")}
    start = service.get("entrypoint", ["docker-entrypoint.sh", "postgres"])
    for path, here in paths.items():
        start = [word.replace(f" {path}", f" {here}") for word in start]
    env = {"PATH": f"{commands}:{os.environ['PATH']}", "STARTED": str(tmp_path / "started")}

    subprocess.run(start, env=env, check=True)

    assert (tmp_path / "started").read_text().split() == ["postgres"]
    assert (scripts / "databases.sh").read_bytes() == mounted.read_bytes()
    assert (scripts / "databases.sh").stat().st_mode & 0o005 == 0o005


def test_the_buckets_are_those_of_mlflow_and_of_dvc():
    config = (ROOT / "deploy/dvc/config").read_text(encoding="utf-8")
    (remote,) = re.findall(r"url = (\S+)", config)
    assert [f"s3://{name}" for name in words("buckets")[2:]] == [
        in_environment("mlflow", "MLFLOW_ARTIFACTS_DESTINATION"), remote
    ]  # fmt: skip
    folder = Path(in_environment("worker", "DVC_SYSTEM_CONFIG_DIR"))
    assert folder.as_posix().endswith("/rounds/deploy/dvc")


def test_the_worker_and_the_page_have_the_password_that_the_server_makes():
    assert in_environment("worker", "PREFECT_AUTH_FILE") == "/prefect/auth"
    assert "PREFECT_API_AUTH_STRING=$(cat /prefect/auth) exec" in " ".join(words("page"))
    volume = f"prefect:{in_environment('prefect', 'PREFECT_HOME')}"
    assert volume in SERVICES["prefect"]["volumes"]
    for name in ("worker", "worker-gpu", "page"):
        assert "prefect:/prefect:ro" in SERVICES[name]["volumes"]
    assert not re.search(r"AUTH_STRING[:=] *['\"]?[A-Za-z0-9]", TEXT), "a password in the file"


@pytest.mark.parametrize("worker", ["worker", "worker-gpu"])
def test_what_people_are_told_links_the_pages_that_they_can_open(tmp_path: Path, worker: str):
    """The names of services mean something in the containers only."""
    says = (
        "from prefect.settings import PREFECT_UI_URL; from pathlib import Path; "
        "from tasks.tracking.links import mlflow_ui; "
        "print(PREFECT_UI_URL.value(), mlflow_ui(Path()))"
    )
    given = {
        name: in_environment(worker, name)
        for name in SERVICES[worker]["environment"]
        if name.startswith(("PREFECT_", "MLFLOW_", "RLHF_MLFLOW_"))
    }
    given = {**environment(tmp_path), "PREFECT_HOME": str(tmp_path), **given}
    done = subprocess.run(
        [sys.executable, "-c", says],
        cwd=ROOT,
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    published = [SERVICES[name]["ports"][0].rpartition(":")[0] for name in ("prefect", "mlflow")]
    assert done.stdout.split() == [f"http://{address}" for address in published]


def test_a_backup_sees_everything_that_is_not_made_anew():
    """Prefect's password and the proxy's certificates are; the databases are dumped."""
    seen = {mount.split(":")[0] for mount in SERVICES["backup"]["volumes"]}
    assert set(COMPOSE["volumes"]) - seen == {"prefect", "proxy", "postgres"}
    assert SERVICES["backup"]["image"] == SERVICES["postgres"]["image"]


# --- The labelling page behind its proxy ----------------------------------------------------------


def test_the_proxy_hands_on_to_the_page_whom_it_has_signed_in():
    caddy = (ROOT / "deploy/Caddyfile").read_text(encoding="utf-8")
    given = _parser().parse_args(words("page")[words("page").index("serve") :])
    assert f"reverse_proxy page:{given.port} " in caddy
    assert f"header_up {given.sign_in_header} {{http.auth.user.id}}" in caddy
    (name,) = given.allow_host
    assert name == "label.example"
    assert set(re.findall(r"\{\$(\w+)\}", caddy)) == {"LABEL_HOST", "LABEL_TLS"}
    assert {"LABEL_HOST", "LABEL_TLS"} == set(SERVICES["proxy"]["environment"])
    address = SERVICES["proxy"]["networks"]["front"]["ipv4_address"]
    assert given.behind_proxy == [address, "127.0.0.1"]
    on_front = {n for n, s in SERVICES.items() if "front" in s.get("networks", [])}
    assert on_front == {"page", "proxy"}
    # The page starts first: without an address of its own it would be given the proxy's.
    addresses = [SERVICES[name]["networks"]["front"]["ipv4_address"] for name in on_front]
    assert len(set(addresses)) == 2


def test_the_page_of_compose_is_healthy_and_believes_its_proxy(tmp_path: Path):
    """The command of compose.yaml; this test is the proxy."""
    port = servers.any_free_port()
    command = words("page")[words("page").index("-m") :]
    command[command.index("8765")] = str(port)
    command[command.index("0.0.0.0")] = "127.0.0.1"
    env = environment(tmp_path, RLHF_FEEDBACK_STORE=str(tmp_path / "labels.db"))
    named = [sys.executable, "-m", "feedback", "token", "ana"]
    subprocess.run(named, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    check = list(SERVICES["page"]["healthcheck"]["test"][1:])
    check = [sys.executable, *(word.replace("8765", str(port)) for word in check[1:])]
    log = tmp_path / "page.log"
    with servers.running("page", [sys.executable, *command], env=env, log=log) as child:
        while subprocess.run(check, env=dict(os.environ), stderr=subprocess.DEVNULL).returncode:
            child.check()
        proxy = {"Host": "label.example", "X-Forwarded-Proto": "https",
                 "X-Forwarded-For": "203.0.113.7"}  # fmt: skip
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            by = {"X-Forwarded-User": "ana"}
            assert client.get("/", headers={**proxy, **by}).status_code == 200
            assert client.get("/", headers={**proxy, "X-Forwarded-User": "eve"}).status_code == 403
            assert client.get("/", headers=proxy).status_code == 303
            clear = {**proxy, **by, "X-Forwarded-Proto": "http"}
            assert client.get("/", headers=clear).status_code == 400
