"""A real browser: the person's is signed in to Prefect, and a page of another site gets nowhere."""

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import servers
from flows.access import sign_in
from flows.environment import environment

pytestmark = pytest.mark.browser

ATTACK = """
const [url, password, done] = arguments;
const headers = {"Content-Type": "application/json", "Authorization": "Basic " + btoa(password)};
const tries = [
  fetch(url, {method: "POST", headers, body: "{}"}),
  fetch(url, {method: "POST", mode: "no-cors", body: "{}"}),
];
const type = (one) => one.value ? one.value.type : "refused";
Promise.allSettled(tries).then((all) => done(all.map(type)));
"""


class Evil(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[servers.Server, servers.Server, str]]:
    env = {**environment(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    log = tmp_path / "mlflow" / "server.log"
    with (
        servers.prefect_server(servers.any_free_port(), env) as prefect,
        servers.mlflow_server(servers.any_free_port(), env, log=log) as mlflow,
    ):
        prefect.wait()
        mlflow.wait()
        yield prefect, mlflow, (tmp_path / "prefect" / "auth").read_text().strip()


def sees(browser: Any, *words: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not all(
        word in (text := browser.execute_script("return document.body.innerText")) for word in words
    ):
        assert time.monotonic() < deadline, text
        time.sleep(0.5)


@pytest.mark.long
def test_the_printed_address_signs_in_and_another_site_is_refused(
    browser: Any,
    both: tuple[servers.Server, servers.Server, str],
    other_site: str,
    picture: Callable[[str], None],
):
    prefect, mlflow, password = both
    browser.set_page_load_timeout(300)
    browser.set_script_timeout(120)
    folder = "/api/2.0/mlflow/experiments/create"
    flows = f"{prefect.url}/api/flows/filter"

    browser.get(other_site)
    for url in (flows, f"{mlflow.url}{folder}"):
        readable, _unreadable = browser.execute_async_script(ATTACK, url, password)
        assert readable == "refused"

    # Without the password the UI asks for it; the address of `make ui` brings it along.
    browser.get(f"{prefect.url}/dashboard")
    sees(browser, "Login")
    picture("prefect-asks")
    browser.get(sign_in(prefect.url, password, "/dashboard"))
    sees(browser, "Event Feed")
    picture("prefect-signed-in")
    assert "#" not in browser.current_url
    own = browser.execute_async_script(ATTACK, flows, password)
    assert own[0] == "basic"
    # Nor does what Prefect's page runs reach anybody else.
    assert browser.execute_async_script(ATTACK, other_site, password) == ["refused", "refused"]

    browser.get(mlflow.url)
    sees(browser, "Experiments")
    picture("mlflow")
