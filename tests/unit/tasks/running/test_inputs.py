"""What a stage knows of its inputs: their manifests, their hashes and the paths of its round."""

import hashlib
import json
from pathlib import Path

import pytest

from tasks.params.loading import load_params
from tasks.running.inputs import fill_paths, input_hashes
from tests.unit.tasks.running.conftest import ROOT, Workplace

LOCK = """
schema: '2.0'
stages:
  prepare:
    cmd: python -m tasks.prepare
    outs:
    - {path: data/prepared, hash: md5, md5: aaa.dir, size: 1, nfiles: 1}
  sft:
    cmd: python -m tasks.sft
    outs:
    - {path: models/sft, hash: md5, md5: bbb.dir, size: 1, nfiles: 1}
    - {path: models/sft2, hash: md5, md5: ccc.dir, size: 1, nfiles: 1}
  reward@r1:
    cmd: python -m tasks.reward --round r1
    outs:
    - {path: models/rounds/r1/reward, hash: md5, md5: ddd.dir, size: 1, nfiles: 1}
"""


@pytest.mark.parametrize("lacking", ["manifest.json", "its seal"])
def test_a_model_without_a_whole_manifest_is_refused_before_anything_is_written(
    place: Workplace, lacking: str
):
    model = place.root / "models/sft"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    found = "expected a manifest, found no file"
    if lacking == "its seal":
        (model / "manifest.json").write_text('{"files": {}}')
        found = "cannot be read (KeyError: 'seal')"

    code, err = place.run("", arguments="name='probe', inputs=('models/sft',)")

    assert code == 2
    remedy = "To restore it: make doctor, then dvc checkout --force models/sft"
    assert err == f"probe: models/sft/manifest.json: {found}. {remedy}\n"
    assert place.output() == []
    assert list(place.root.glob(".work/spool/*")) == []


def test_inputs_are_hashed_as_dvc_recorded_them(tmp_path: Path):
    assert input_hashes(tmp_path, ["models/sft"], {}) == {}
    (tmp_path / "dvc.lock").write_text(LOCK)

    assert input_hashes(tmp_path, ["models/sft"], {}) == {"models/sft": "bbb.dir"}
    assert input_hashes(tmp_path, ["models", "data/prepared"], {}) == {
        "data/prepared": "aaa.dir",
        "models/rounds/r1/reward": "ddd.dir",
        "models/sft": "bbb.dir",
        "models/sft2": "ccc.dir",
    }


def test_the_paths_of_a_round_are_filled_in():
    params = load_params(ROOT / "params.yaml")
    paths = ["data/prepared", "{policy}", "{preferences}", "models/rounds/{key}/reward"]

    assert fill_paths(paths, params, "r2") == [
        "data/prepared",
        "models/rounds/r1/policy",
        "data/rounds/r1/preferences",
        "models/rounds/r2/reward",
    ]
    assert fill_paths(["models/rounds/{final}/policy"], params, None) == ["models/rounds/r3/policy"]


def test_params_and_input_hashes_go_to_mlflow_with_the_run(place: Workplace):
    (place.root / "dvc.lock").write_text(LOCK)
    code, _ = place.run("", arguments="name='probe', inputs=('models/sft',)")

    (path,) = place.root.glob(".work/spool/probe/*/start.json")
    start = json.loads(path.read_text())
    assert code == 0
    assert start["inputs"] == {"models/sft": "bbb.dir"}
    assert start["params"]["report.samples"] == load_params(ROOT / "params.yaml").report.samples
    assert start["params"]["run.seed"] == load_params(ROOT / "params.yaml").run.seed
    assert {key.partition(".")[0] for key in start["params"]} == {"run", "report"}


DEFINITION = """\
stages:
  probe:
    cmd: exec python probe.py
    deps: [data/rows.jsonl]
    outs: [results/probe]
"""
STALE = """\
schema: '2.0'
stages:
  rows:
    cmd: exec python rows.py
    outs:
    - {path: data/rows.jsonl, hash: md5, md5: 0123456789abcdef0123456789abcdef, size: 1}
"""


def test_an_input_has_the_hash_of_what_was_read_where_a_git_stash_took_its_entry(
    place: Workplace,
):
    """The stage before has written other rows than those of the commit, whose dvc.lock is back."""
    (place.root / "dvc.yaml").write_text(DEFINITION)
    (place.root / "dvc.lock").write_text(STALE)
    (place.root / "data").mkdir()
    (place.root / "data/rows.jsonl").write_text("{}\n")

    code, err = place.run("", arguments="name='probe', inputs=('data/rows.jsonl',)")

    assert code == 0, err
    (path,) = place.root.glob(".work/spool/probe/*/start.json")
    digest = hashlib.md5(b"{}\n").hexdigest()
    assert json.loads(path.read_text())["inputs"] == {"data/rows.jsonl": digest}
