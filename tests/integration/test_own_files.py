"""Own files that change: what DVC runs again, by itself and after `make repro`'s checks."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.own_data.preflight import check_inputs
from tasks.params.loading import load_params
from tests.integration.own_place import write_rows
from tests.stage_world import copy_repository
from tests.word_models import write_chat_model


@dataclass(frozen=True)
class Checkout:
    """A fresh clone, whose params name own prompts and an own model."""

    root: Path
    values: dict[str, Any]

    def save(self) -> None:
        YAML().dump(self.values, self.root / "params.yaml")

    def check(self) -> None:
        """What `make repro` and `make flow` do first."""
        check_inputs(load_params(self.root / "params.yaml"), self.root)

    def dvc(self, *arguments: str) -> tuple[int, str]:
        private = ("MLFLOW_", "RLHF_", "DVC_", "GIT_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(private)}
        done = subprocess.run(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=self.root,
            env=kept
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "DVC_NO_ANALYTICS": "1",
                "RLHF_SHIPPER": "driver",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def stale(self) -> list[str]:
        code, said = self.dvc("status", "--json", "prepare", "base")
        assert code == 0, said
        return sorted(json.loads(said))

    def prompts(self) -> int:
        """Rows of all three prompt files that the stage wrote."""
        files = (self.root / "data/prepared/prompts").glob("*.jsonl")
        return sum(len(file.read_text().splitlines()) for file in files)


def prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt_id": f"p{n}", "prompt": f"w{n % 60} w{n // 7}"} for n in range(count)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    folder = tmp_path_factory.mktemp("own")
    root = folder / "main"
    copy_repository(root, without=("tests/", "docs/", "benchmarks/"))
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        if command[0] == "git" or not (root / ".dvc").is_dir():
            subprocess.run(command, cwd=root, check=True)
    values: dict[str, Any] = YAML(typ="safe").load(root / "params.yaml")
    values["run"] |= {"threads": 1, "device": "cpu"}
    values["sample"]["pairs"] = 20
    values["label"] = {"annotators": "file", "file": "mine/judgments.jsonl"}
    values["prepare"]["files"] = {
        "prompts": "mine/prompts.jsonl",
        "demonstrations": "mine/demonstrations.jsonl",
    }
    # A folder outside of the repository is followed as well.
    values["base"]["model"] = str(folder / "model")
    write_chat_model(folder / "model")
    write_rows(root / "mine/prompts.jsonl", prompts(200))
    answered = [{**row, "response": "w1 w2"} for row in prompts(20)]
    write_rows(root / "mine/demonstrations.jsonl", answered)
    here = Checkout(root, values)
    here.save()
    return here


@pytest.mark.long
def test_a_first_dvc_repro_is_refused_once_and_the_second_follows_own_files(checkout: Checkout):
    code, said = checkout.dvc("repro", "base")

    assert code != 0
    assert 'dvc.yaml now lists "mine/prompts.jsonl" (prepare.files.prompts); it now lists' in said
    assert "DVC had read it before: run the same command again" in said
    lines = (checkout.root / "dvc.yaml").read_text().splitlines()
    assert '      - "mine/prompts.jsonl"  # named in params.yaml: prepare.files.prompts' in lines

    code, said = checkout.dvc("repro", "base")

    assert code == 0, said
    assert checkout.prompts() == 200
    assert checkout.stale() == []


@pytest.mark.long
def test_changed_prompts_run_again_and_no_old_row_comes_back_from_the_cache(checkout: Checkout):
    checkout.check()
    assert checkout.dvc("repro", "base")[0] == 0
    write_rows(checkout.root / "mine/prompts.jsonl", prompts(150))
    shutil.rmtree(checkout.root / "data/prepared")

    assert checkout.stale() == ["base", "prepare"]
    code, said = checkout.dvc("repro", "prepare")

    assert code == 0, said
    assert checkout.prompts() == 150


@pytest.mark.long
def test_a_new_chat_template_in_the_folder_of_base_model_runs_base_again(checkout: Checkout):
    checkout.check()
    assert checkout.dvc("repro", "base")[0] == 0
    template = Path(checkout.values["base"]["model"]) / "chat_template.jinja"
    before = template.read_text()

    template.write_text(before.replace("<assistant>", "<assistant> "))

    assert checkout.stale() == ["base"]
    code, said = checkout.dvc("repro", "base")
    assert code == 0, said
    made = checkout.root / "models/base/chat_template.jinja"
    assert made.read_text() == template.read_text() != before


def test_a_file_that_is_no_longer_named_leaves_dvc_yaml_as_it_was(checkout: Checkout):
    checkout.check()
    before = (checkout.root / "dvc.yaml").read_text()
    assert "# named in params.yaml" in before
    params = (checkout.root / "params.yaml").read_text()
    default = Path(__file__).resolve().parents[2]
    shutil.copy(default / "params.yaml", checkout.root)

    checkout.check()

    assert (checkout.root / "dvc.yaml").read_bytes() == (default / "dvc.yaml").read_bytes()
    (checkout.root / "params.yaml").write_text(params)
    checkout.check()
    assert (checkout.root / "dvc.yaml").read_text() == before
