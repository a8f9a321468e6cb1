"""Caddy itself with `deploy/Caddyfile`, in front of the labelling page: needs a `caddy`.

    apt-get install caddy && python -m pytest -m team tests/integration/test_proxy.py

Debian's Caddy 2.6 knows `basic_auth` by its name of before 2.8; nothing else differs.
"""

import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flows import servers
from tests.stage_world import environment

pytestmark = pytest.mark.team

ROOT = Path(__file__).resolve().parents[2]
CADDY = shutil.which("caddy")
HOST = "localhost"
"""Resolved everywhere; Caddy certifies it by itself, as each name with `internal`."""
GLOBAL = """{{
	admin off
	skip_install_trust
	http_port {http}
	https_port {https}
}}
"""
PASSWORD = "of this test"


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def caddyfile(folder: Path, page: int, http: int, https: int) -> str:
    """That of compose.yaml, with the ports and files of this test."""
    assert CADDY is not None
    people = folder / "people"
    hashed = said(CADDY, "hash-password", "--plaintext", PASSWORD)
    people.write_text("".join(f"{name} {hashed}\n" for name in ("ana", "lea", "eve")))
    text = (ROOT / "deploy/Caddyfile").read_text(encoding="utf-8")
    changes = {"/etc/caddy/people": str(people), "page:8765": f"127.0.0.1:{page}"}
    version = tuple(map(int, said(CADDY, "version").lstrip("v").split()[0].split(".")))
    if version < (2, 8):
        changes["basic_auth"] = "basicauth"
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return GLOBAL.format(http=http, https=https) + text


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client that trusts Caddy's authority; the page has let `ana` in, and `lea`, who leads."""
    if CADDY is None:
        pytest.skip("no caddy: apt-get install caddy")
    folder = tmp_path_factory.mktemp("proxy")
    page, http, https = (servers.any_free_port() for _ in range(3))
    env = environment(folder, RLHF_FEEDBACK_STORE=str(folder / "labels.db"))
    for who in (["ana"], ["lea", "--lead"]):
        token = [sys.executable, "-m", "feedback", "token", *who]
        subprocess.run(token, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    serve = [
        sys.executable, "-m", "feedback", "serve", "--port", str(page), "--allow-host", HOST,
        "--behind-proxy", "127.0.0.1", "--sign-in-header", "X-Forwarded-User",
    ]  # fmt: skip
    file = folder / "Caddyfile"
    file.write_text(caddyfile(folder, page, http, https))
    run = [CADDY, "run", "--adapter", "caddyfile", "--config", str(file)]
    # Its certificates, and its own authority.
    env |= {"LABEL_HOST": HOST, "LABEL_TLS": "internal", "XDG_DATA_HOME": str(folder / "data")}
    env |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    authority = folder / "data/caddy/pki/authorities/local/root.crt"
    with (
        servers.running("page", serve, env=env, log=folder / "page.log"),
        servers.running("caddy", run, env=env, log=folder / "caddy.log") as caddy,
    ):
        wait_for(page, https, child=caddy)
        trust = ssl.create_default_context(cafile=str(authority))
        address = f"https://{HOST}:{https}"
        with httpx.Client(base_url=address, verify=trust, trust_env=False, timeout=60) as client:
            yield client


def wait_for(*ports: int, child: servers.Child) -> None:
    for port in ports:
        while True:
            child.check()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                continue


def test_nobody_reaches_the_page_without_a_name_and_a_password(proxy: httpx.Client) -> None:
    for who in (None, ("ana", "wrong"), ("bob", PASSWORD)):
        assert proxy.get("/", auth=who, headers={"X-Forwarded-User": "lea"}).status_code == 401


def test_the_page_is_told_who_has_signed_in_and_believes_nobody_else(proxy: httpx.Client) -> None:
    assert proxy.get("/", auth=("ana", PASSWORD)).status_code == 200
    # The overview is for who leads.
    assert proxy.get("/lead", auth=("lea", PASSWORD)).status_code == 200
    forged = {"X-Forwarded-User": "lea"}
    assert proxy.get("/lead", auth=("ana", PASSWORD)).status_code == 303
    assert proxy.get("/lead", auth=("ana", PASSWORD), headers=forged).status_code == 303
    # Known to the proxy, but not to the page.
    assert proxy.get("/", auth=("eve", PASSWORD)).status_code == 403
