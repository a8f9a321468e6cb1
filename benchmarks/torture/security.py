"""Trials with files that were made to do harm, and with secrets."""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.torture.children import run
from benchmarks.torture.world import Count, World
from tests.stage_world import forget

MALICIOUS_TESTS = (
    "tests/unit/rlhf/test_model_folders.py::test_code_in_a_model_folder_is_never_run",
    "tests/unit/rlhf/test_model_folders.py::test_pickled_weights_are_never_read",
    "tests/unit/rlhf/test_templates.py::test_memory_is_bounded_while_a_template_renders",
    "tests/unit/rlhf/test_templates.py::test_time_is_bounded_while_a_template_renders",
    "tests/unit/rlhf/test_templates.py::test_a_template_that_fails_says_why_and_reaches_nothing",
    "tests/unit/rlhf/test_templates.py"
    "::test_a_template_that_blows_a_prompt_up_is_refused_before_it_is_tokenised",
)
"""The tests that carry the artefacts; each parameter is one."""

SEVERAL = {
    "test_code_in_a_model_folder_is_never_run": 4,
    "test_pickled_weights_are_never_read": 3,
}
"""Artefacts in a test that has several: code for config, policy, reward model and tokenizer;
three pickles."""


def malicious(_world: World, _trials: int) -> Count:
    """The tests that carry them, in a process of their own; see tests/unit/rlhf."""
    count, code_or_pickle = Count(), 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junit-xml={report}", *MALICIOUS_TESTS]
        subprocess.run(command, capture_output=True, check=False)
        for case in ElementTree.parse(report).iter("testcase"):
            name = case.attrib["name"]
            for number in range(SEVERAL.get(name, 1)):
                count.add(f"{name} {number}", {"it was not refused": len(case) > 0})
            code_or_pickle += SEVERAL.get(name, 0)
    templates = count.tried - code_or_pickle
    count.remark = f"{code_or_pickle} pieces of code and pickles, {templates} chat templates"
    return count


def canaries(world: World, _trials: int) -> Count:
    """Secrets in variables and in the tracking address; every file written is searched."""
    root = world.root
    names = (
        "HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "WANDB_API_KEY",
        "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PREFECT_API_KEY",
    )  # fmt: skip
    secrets = {name: f"canary-{number:02d}-of-torture" for number, name in enumerate(names)}
    user, password = "canary-08-of-torture", "canary-09-of-torture"
    address = f"http://{user}:{password}@127.0.0.1:9"
    forget(root, "base")
    run(root, "base", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=address, **secrets)
    # And one that ends badly, with the address in what the library says.
    manifest = root / "models/base/manifest.json"
    kept = manifest.read_bytes()
    manifest.write_text("{")
    run(root, "sft", RLHF_SHIPPER="", MLFLOW_TRACKING_URI=address, **secrets)
    manifest.write_bytes(kept)
    contents = [(path, path.read_bytes()) for path in root.rglob("*") if path.is_file()]
    count = Count()
    everything = {**secrets, "the address's user": user, "the address's password": password}
    for name, secret in everything.items():
        places = [str(path.relative_to(root)) for path, text in contents if secret.encode() in text]
        count.add(name, {f"found in {', '.join(places)}": bool(places)})
    world.said()
    count.remark = f"{len(contents)} files of the workspace were searched, the log among them"
    return count
