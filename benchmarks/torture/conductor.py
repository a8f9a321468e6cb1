"""Trials with Prefect's server, which goes away while the flow runs."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.torture.checkout import check_out, fingerprint
from benchmarks.torture.orchestrators import SHORT
from benchmarks.torture.world import Count, World
from flows import servers
from tests.stage_world import environment

AWAY_SECONDS = 90.0
TRUTHFUL_SECONDS = 180.0
STEPS = 2000
"""Of pre-training, which is to go on for longer than the server is away."""


def prefect_away(world: World, _trials: int) -> Count:
    """Prefect's server is killed (-9) while the flow runs, and started again 90 s later."""
    folder = world.root.parent / "conductor"
    root = check_out(folder / "root", stages=SHORT, steps=STEPS)
    port = servers.any_free_port()
    address = f"{servers.url(port)}/api"
    settings = environment(
        folder,
        PREFECT_HOME=str(folder / "prefect"),
        PREFECT_API_URL=address,
        RLHF_CHECKPOINT_STEPS="100",
        **{name: "127.0.0.1,localhost" for name in ("no_proxy", "NO_PROXY")},
    )
    server = _server(port, settings, folder)
    flow = _flow(root, settings, folder / "flow.log")
    _until(lambda: (root / ".work/base/running.json").exists(), flow)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    time.sleep(AWAY_SECONDS)
    ran_on = flow.poll() is None
    done = _stages_run(folder / "flow.log")
    server = _server(port, settings, folder)
    code, back = flow.wait(), time.monotonic()
    try:
        truth = _wait_for_truth(address, back + TRUTHFUL_SECONDS)
        took = time.monotonic() - back
        locked = fingerprint(root)
        again = _flow(root, settings, folder / "again.log")
        code_again = again.wait()
        recomputed = _stages_run(folder / "again.log")
        repaired = _states(address)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    first = truth["flows"][:1]
    wrong = {
        f"the flow ended with exit code {code}: {_last(folder / 'flow.log')}": code != 0,
        f"states after {took:.0f} s: {truth}": not _truthful(truth),
        f"the second run ended with exit code {code_again}": code_again != 0,
        f"stages run again: {recomputed}": bool(recomputed),
        "other bytes after the second run": fingerprint(root) != locked,
    }
    count = Count()
    count.add("server killed and started again", wrong)
    shutil.rmtree(folder)
    count.remark = (
        f"down for {AWAY_SECONDS:.0f} s; by then the flow {'still ran' if ran_on else 'had ended'} "
        f"and had started {', '.join(done)}; it ended as {_words(first)} with its tasks "
        f"{_tally(truth['tasks'])}, shown {took:.0f} s after its end; run again, it ran "
        f"{len(recomputed)} stages, and all runs were {_words(repaired['flows'])}"
    )
    return count


def _server(port: int, settings: dict[str, str], folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "prefect", "server", "start", "--analytics-off"]
    command += ["--host", servers.HOST, "--port", str(port), "--log-level", "WARNING"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=settings, stdout=log, stderr=log, start_new_session=True
        )
    _until(lambda: servers.is_healthy(servers.url(port) + servers.PREFECT_HEALTH), process)
    return process


def _flow(root: Path, settings: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.local"],
            cwd=root, env=settings, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


def _until(holds: Any, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 600
    while not holds():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _stages_run(log: Path) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", log.read_text(errors="replace"))


def _wait_for_truth(address: str, deadline: float) -> dict[str, list[str]]:
    """The states that the server shows, once they are what happened, or at the deadline."""
    while not _truthful(states := _states(address)) and time.monotonic() < deadline:
        time.sleep(1)
    return states


def _truthful(states: dict[str, list[str]]) -> bool:
    """Whether the run and all three tasks show that they went well, as they did."""
    return states["flows"] == ["COMPLETED"] and states["tasks"] == ["COMPLETED"] * len(SHORT)


def _states(address: str) -> dict[str, list[str]]:
    flows = _post(f"{address}/flow_runs/filter")
    oldest = sorted(flows, key=lambda run: str(run["created"]))
    of_first = {"flow_runs": {"id": {"any_": [run["id"] for run in oldest[:1]]}}}
    tasks = _post(f"{address}/task_runs/filter", of_first)
    return {
        kind: [str(run["state_type"]) for run in runs]
        for kind, runs in (("flows", oldest), ("tasks", tasks))
    }


def _post(url: str, body: Any = None) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


def _tally(states: list[str]) -> str:
    return ", ".join(f"{many} {state}" for state, many in Counter(states).items()) or "unknown"


def _words(states: list[str]) -> str:
    return ", ".join(state for state, _ in itertools.groupby(states)) or "unknown"


def _last(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]
