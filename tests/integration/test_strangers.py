"""Pages of other sites, other host names and other users, against the servers of `make ui`."""

import http.client
import json
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows import servers
from flows.access import authorization
from flows.environment import environment

pytestmark = pytest.mark.long

ELSEWHERE = ["http://evil.example", "null", "http://127.0.0.1:9", "http://localhost:9"]
DEPLOYMENTS = "/api/deployments/filter"
EXPERIMENTS = "/api/2.0/mlflow/experiments/create"


class Pages:
    """Both servers, as `make ui` starts them, and the password of Prefect's."""

    def __init__(self, home: Path, prefect: servers.Server, mlflow: servers.Server) -> None:
        self.home, self.prefect, self.mlflow = home, prefect, mlflow
        self.password = (home / "auth").read_text().strip()
        self.signed_in = {"Authorization": authorization(self.password)}


def ask(server: servers.Server, path: str, body: object = None, **headers: str) -> tuple[int, str]:
    """Status and body of a request that bears exactly these headers (`_` for `-`)."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    method = named.pop("method", "GET" if body is None else "POST")
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", **named})
    response = connection.getresponse()
    text = response.read().decode("utf-8", "replace")
    allowed = response.getheader("access-control-allow-origin")
    assert allowed in (None, server.url), f"{path}: another origin may read the response: {allowed}"
    return response.status, text


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    home = tmp_path_factory.mktemp("home") / "prefect"
    home.mkdir(mode=0o755)
    # As an earlier version left it: for everybody to read.
    (home / "prefect.db").touch(mode=0o644)
    store = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    env = {**environment(home), "PREFECT_HOME": str(home)}
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{store}"
    log = store.parent / "server.log"
    with (
        servers.prefect_server(servers.any_free_port(), env) as prefect,
        servers.mlflow_server(servers.any_free_port(), env, log=log) as mlflow,
    ):
        prefect.wait()
        mlflow.wait()
        yield Pages(home, prefect, mlflow)


def test_the_person_who_has_the_password_is_let_in(pages: Pages):
    assert ask(pages.prefect, DEPLOYMENTS, {}, **pages.signed_in) == (200, "[]")
    own = {"Origin": pages.prefect.url, **pages.signed_in}
    assert ask(pages.prefect, DEPLOYMENTS, {}, **own) == (200, "[]")


def test_mlflow_works_for_its_own_page(pages: Pages):
    for number, headers in enumerate([{}, {"Origin": pages.mlflow.url}]):
        status, text = ask(pages.mlflow, EXPERIMENTS, {"name": f"e{number}"}, **headers)
        assert status == 200, text
    assert ask(pages.mlflow, "/")[0] == 200


def test_mlflow_answers_other_machines_under_the_name_that_it_is_given(tmp_path: Path):
    """As on a cluster and in compose.yaml; MLflow has a guard of its own behind ours."""
    port = servers.any_free_port()
    named = [sys.executable, "-m", "flows.guarded", "mlflow", "--port", str(port)]
    env = {**environment(tmp_path), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    # The store is not a checkout's, so what lies beside it is somebody's own.
    shared = tmp_path / "shared.txt"
    for path, mode in ((shared, 0o644), (tmp_path, 0o755)):
        path.touch()
        path.chmod(mode)
    with servers.running(
        "MLflow", [*named, "--address", f"tracking:{port}"], env=env, log=tmp_path / "log"
    ) as child:
        server = servers.Server(child, servers.url(port), "/health")
        server.wait()
        name = {"Host": f"tracking:{port}"}
        status, text = ask(server, EXPERIMENTS, {"name": "e"}, **name)
        assert status == 200, text
        assert ask(server, EXPERIMENTS, {"name": "f"}, Host=f"evil.example:{port}")[0] == 421
    assert [path.stat().st_mode & 0o777 for path in (shared, tmp_path)] == [0o644, 0o755]


def test_prefect_asks_for_the_password(pages: Pages):
    assert ask(pages.prefect, DEPLOYMENTS, {})[0] == 401
    wrong = authorization("prefect:prefect")
    assert ask(pages.prefect, DEPLOYMENTS, {}, Authorization=wrong)[0] == 401
    assert ask(pages.prefect, "/api/health") == (200, "true")


def test_prefects_pages_with_code_of_another_server_are_not_served(pages: Pages):
    for path in ("/docs", "/redoc"):
        assert ask(pages.prefect, path, **pages.signed_in)[0] == 404
    assert ask(pages.prefect, "/", **pages.signed_in)[0] == 200


@pytest.mark.parametrize("origin", ELSEWHERE)
def test_another_origin_is_refused_even_with_the_password(pages: Pages, origin: str):
    theirs = {"Origin": origin, **pages.signed_in}
    assert ask(pages.prefect, DEPLOYMENTS, {}, **theirs)[0] == 403
    preflight = {"method": "OPTIONS", "Access_Control_Request_Method": "POST"}
    assert ask(pages.prefect, DEPLOYMENTS, **theirs, **preflight)[0] == 403


@pytest.mark.parametrize("origin", ELSEWHERE)
def test_another_origin_neither_writes_to_mlflow_nor_reads_from_it(pages: Pages, origin: str):
    assert ask(pages.mlflow, EXPERIMENTS, {"name": "theirs"}, Origin=origin)[0] == 403
    known = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=theirs"
    assert ask(pages.mlflow, known, Origin=origin)[0] == 403
    assert ask(pages.mlflow, known)[0] == 404


@pytest.fixture(scope="module")
def deployment(pages: Pages) -> str:
    """Path of a deployment that its owner has made, to be run in a folder of theirs."""

    def own(path: str, body: object) -> str:
        for _ in range(20):
            status, text = ask(pages.prefect, path, body, **pages.signed_in)
            if status != 503:  # The server's own loops have its database at the moment.
                break
            time.sleep(0.5)
        assert status in (200, 201), text
        return str(json.loads(text)["id"])

    flow = own("/api/flows/", {"name": "rlhf"})
    made = {"name": "rounds", "flow_id": flow, "entrypoint": "flows.rlhf.rlhf", "path": "/"}
    return f"/api/deployments/{own('/api/deployments/', made)}"


@pytest.mark.parametrize(
    "theirs",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Content_Type": "text/plain"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Content_Type": "text/plain"},
        {"Host": "evil.example:{port}"},
        {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"},
        {},
    ],
)
def test_nobody_else_changes_what_a_deployment_runs_or_orders_a_run(
    pages: Pages, deployment: str, theirs: dict[str, str]
):
    """The attack of the first week: a shell command as `pull_steps`, and a run that executes it."""
    step = {"prefect.deployments.steps.run_shell_script": {"script": "touch /tmp/owned"}}
    port = pages.prefect.url.rpartition(":")[2]
    headers = {name: value.format(port=port) for name, value in theirs.items()}
    for method, path, body in [
        ("PATCH", deployment, {"pull_steps": [step]}),
        ("POST", f"{deployment}/create_flow_run", {}),
        ("POST", "/api/deployments/", {"name": "theirs", "pull_steps": [step]}),
        ("DELETE", deployment, None),
    ]:
        status, text = ask(pages.prefect, path, body, method=method, **headers)
        assert status in (401, 403, 421), text

    _, known = ask(pages.prefect, deployment, **pages.signed_in)
    assert json.loads(known)["pull_steps"] == []
    assert ask(pages.prefect, "/api/flow_runs/count", {}, **pages.signed_in) == (200, "0")
    assert ask(pages.prefect, "/api/deployments/count", {}, **pages.signed_in) == (200, "1")


def test_the_owner_may_change_what_a_deployment_runs(pages: Pages, deployment: str):
    """By the same request: it is the stranger that is refused, not the change."""
    step = {"prefect.deployments.steps.set_working_directory": {"directory": "/"}}
    change = {"pull_steps": [step]}
    status, text = ask(pages.prefect, deployment, change, method="PATCH", **pages.signed_in)
    assert status == 204, text
    _, known = ask(pages.prefect, deployment, **pages.signed_in)
    assert json.loads(known)["pull_steps"] == [step]


def test_mlflows_assistant_is_not_served_to_anybody(pages: Pages):
    """It would run commands here for whoever may choose its model; MLflow asks for no password."""
    assistant = "/ajax-api/3.0/mlflow/assistant"
    for path in ("/config", "/providers", "/message", "/sessions/1/permission", ""):
        assert ask(pages.mlflow, f"{assistant}{path}")[0] == 404
        assert ask(pages.mlflow, f"{assistant}{path}", {})[0] == 404
    assert ask(pages.mlflow, "/health")[0] == 200


def test_a_page_of_mlflow_is_another_origin_for_prefect(pages: Pages):
    theirs = {"Origin": pages.mlflow.url, **pages.signed_in}
    assert ask(pages.prefect, DEPLOYMENTS, {}, **theirs)[0] == 403


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:{port}", "127.0.0.1:9", "localhost"]
)
def test_a_name_that_leads_here_is_not_enough(pages: Pages, name: str):
    """DNS rebinding: the browser takes evil.example for the origin, and the address is ours."""
    for server, path in ((pages.prefect, "/"), (pages.mlflow, "/"), (pages.prefect, "/api/health")):
        host = name.format(port=server.url.rpartition(":")[2])
        assert ask(server, path, Host=host)[0] == 421


def test_what_another_page_embeds_is_refused_and_what_it_links_to_is_shown(pages: Pages):
    image = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}
    frame = {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate"}
    for server in (pages.prefect, pages.mlflow):
        assert ask(server, "/", **image)[0] == 403
        assert ask(server, "/", Sec_Fetch_Dest="iframe", **frame)[0] == 403
        assert ask(server, "/", Sec_Fetch_Dest="document", **frame)[0] in (200, 307)


def test_events_cannot_be_listened_to_from_elsewhere(pages: Pages):
    address = f"{pages.prefect.url.replace('http', 'ws')}/api/events/out"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(address, origin="http://evil.example", subprotocols=["prefect"], proxy=None),
    ):
        pytest.fail("another site listens")
    assert refused.value.response.status_code == 403


def test_the_password_is_in_no_command_line_and_no_log(pages: Pages):
    for server in (pages.prefect, pages.mlflow):
        command = Path(f"/proc/{server.child.process.pid}/cmdline").read_text()
        assert pages.password not in command
        assert pages.password not in server.child.log.read_text()


def test_what_the_servers_keep_is_for_its_owner_only(pages: Pages):
    for folder in (pages.home, pages.mlflow.child.log.parent):
        files = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.name for path in files}
        assert names & {"prefect.db", "mlflow.db"}
        # The lock names an address; nobody else can come to the folder that it lies in.
        loose = {
            path.name: oct(path.stat().st_mode) for path in files if path.stat().st_mode & 0o77
        }
        assert loose == {}
    assert stat.S_IMODE(pages.home.stat().st_mode) == 0o700
