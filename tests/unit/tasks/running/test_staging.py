"""Outputs appear whole or not at all, and say what they were made of."""

import errno
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.running.staging import (
    Staging,
    drafts,
    model_hash,
    sha256,
    write_history,
    write_json_lines,
    write_manifest,
)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path, tmp_path / ".work" / "probe" / "staging")


def test_nothing_is_visible_before_everything_is_published(tmp_path: Path, staging: Staging):
    staging.file("data/rows.jsonl").write_text("row")
    (staging.directory("models/probe") / "config.json").write_text("{}")
    assert [path.name for path in tmp_path.iterdir()] == [".work"]

    published = staging.publish()

    assert published == [tmp_path / "data/rows.jsonl", tmp_path / "models/probe"]
    assert (tmp_path / "data/rows.jsonl").read_text() == "row"
    assert (tmp_path / "models/probe/config.json").read_text() == "{}"
    assert not (tmp_path / ".work/probe/staging").exists()


def test_an_earlier_output_is_replaced_as_a_whole(tmp_path: Path, staging: Staging):
    old = tmp_path / "models" / "probe"
    old.mkdir(parents=True)
    (old / "left_over.json").write_text("old")
    (tmp_path / "rows.jsonl").write_text("old")
    (staging.directory("models/probe") / "config.json").write_text("new")
    staging.file("rows.jsonl").write_text("new")

    staging.publish()

    assert [path.name for path in old.iterdir()] == ["config.json"]
    assert (tmp_path / "rows.jsonl").read_text() == "new"


def test_what_a_killed_run_left_behind_is_not_published(tmp_path: Path):
    folder = tmp_path / ".work" / "probe" / "staging"
    killed = Staging(tmp_path, folder)
    (killed.directory("models/probe") / "half.bin").write_text("ha")

    again = Staging(tmp_path, folder)
    (again.directory("models/probe") / "whole.bin").write_text("whole")
    again.publish()

    assert [path.name for path in (tmp_path / "models/probe").iterdir()] == ["whole.bin"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A `.work` on a file system of its own, as compose.yaml mounts it."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here (/dev/shm)")
    folder = Path(tempfile.mkdtemp(dir=memory))
    (tmp_path / ".work").symlink_to(folder)
    yield tmp_path / ".work"
    shutil.rmtree(folder)


def test_outputs_are_published_from_another_file_system(tmp_path: Path, elsewhere: Path):
    (elsewhere / "x").mkdir()
    with pytest.raises(OSError, match="Invalid cross-device link"):
        (elsewhere / "x").rename(tmp_path / "x")
    old = tmp_path / "models/probe"
    old.mkdir(parents=True)
    (old / "left_over.json").write_text("old")
    staging = Staging(tmp_path, elsewhere / "probe/staging")
    (staging.directory("models/probe") / "config.json").write_text("new")
    staging.file("data/rows.jsonl").write_text("row")

    staging.publish()

    assert [path.name for path in (tmp_path / "models").iterdir()] == ["probe"]
    assert [(path.name, path.read_text()) for path in old.iterdir()] == [("config.json", "new")]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["rows.jsonl"]
    assert (tmp_path / "data/rows.jsonl").read_text() == "row"
    assert not (elsewhere / "probe/staging").exists()


def test_the_old_outputs_stay_until_all_new_ones_have_been_copied(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("models/probe", "results/probe"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "old").write_text("old")
    staging = Staging(tmp_path, elsewhere / "probe/staging")
    for name in ("models/probe", "results/probe"):
        (staging.directory(name) / "new").write_text("new")
    copy = shutil.copytree

    def full(source: Path, target: Path) -> Path:
        copied = copy(source, target)
        if "results" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        return Path(copied)

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
        staging.publish()

    assert [path.name for path in (tmp_path / "models/probe").iterdir()] == ["old"]
    assert [path.name for path in (tmp_path / "results/probe").iterdir()] == ["old"]
    assert drafts(tmp_path) == []


def test_what_a_kill_left_half_copied_goes_when_the_next_stage_starts(tmp_path: Path):
    half = tmp_path / "data/rounds/r1/.preferences.publishing"
    half.mkdir(parents=True)
    (half / "train.jsonl").write_text("ha")
    assert drafts(tmp_path) == [half]

    Staging(tmp_path, tmp_path / ".work/another/staging")

    assert list((tmp_path / "data/rounds/r1").iterdir()) == []


def test_an_old_output_that_a_kill_left_beside_its_place_comes_back(tmp_path: Path):
    beside = tmp_path / "models/rounds/r1/.policy.replaced"
    beside.mkdir(parents=True)
    (beside / "config.json").write_text("old")

    Staging(tmp_path, tmp_path / ".work/probe/staging")

    assert (tmp_path / "models/rounds/r1/policy/config.json").read_text() == "old"
    assert not beside.exists()


@pytest.mark.parametrize("ending", ["publishing", "replaced"])
def test_what_is_half_copied_is_ignored_by_git_and_dvc(ending: str):
    root = Path(__file__).resolve().parents[4]
    path = f"data/.prepared.{ending}"

    command = ["git", "check-ignore", "--no-index", "--quiet", path]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0
    assert f".*.{ending}" in (root / ".dvcignore").read_text().splitlines()


def test_the_manifest_lists_every_file_with_size_and_sha256_but_not_itself(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(b"abc")
    (tmp_path / "config.json").write_bytes(b"{}\n")
    for _ in range(2):  # The second time there is a manifest to leave out.
        write_manifest(
            tmp_path,
            params={"sft": {"epochs": 1}},
            inputs={"models/z": "9", "models/a": "1"},
        )

    text = (tmp_path / "manifest.json").read_text()
    manifest = json.loads(text)
    seal = manifest.pop("seal")

    # sha256 of "abc" as in FIPS 180-2, appendix B.1.
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    config = hashlib.sha256(b"{}\n").hexdigest()
    assert manifest == {
        "files": {
            "config.json": {"size": 3, "sha256": config},
            "sub/weights.bin": {"size": 3, "sha256": known},
        },
        "inputs": {"models/a": "1", "models/z": "9"},
        "params": {"sft": {"epochs": 1}},
    }
    assert list(manifest["inputs"]) == ["models/a", "models/z"]
    # The seal is of the text as it is without its line, so anyone can check it.
    bare = re.sub(r',\n "seal": "[0-9a-f]{64}"\n', "\n", text)
    assert seal == hashlib.sha256(bare.encode()).hexdigest()


def test_a_models_name_changes_with_any_of_its_bytes(tmp_path: Path):
    def named(weights: bytes) -> str:
        (tmp_path / "weights.bin").write_bytes(weights)
        write_manifest(tmp_path, params={}, inputs={})
        return model_hash(tmp_path)

    first = named(b"abc")

    assert named(b"abc") == first == sha256(tmp_path / "manifest.json")[:16]
    assert named(b"abd") != first


def test_rows_keep_their_letters_and_the_order_of_their_keys(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    write_json_lines(path, [{"z": "naïve 猫", "a": 1}, {"line": "one\ntwo"}])

    text = path.read_bytes().decode("utf-8")

    assert text == '{"z": "naïve 猫", "a": 1}\n{"line": "one\\ntwo"}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path, value: float):
    with pytest.raises(ValueError, match="JSON"):
        write_json_lines(tmp_path / "rows.jsonl", [{"x": value}])


def test_history_has_a_column_per_figure_in_order_of_appearance(tmp_path: Path):
    path = tmp_path / "history.csv"
    write_history(
        path,
        [
            {"step": 1, "loss": 0.123456789123, "accuracy": 0.5},
            {"step": 2, "loss": 1e-9, "grad_norm": 3.0},
        ],
    )

    assert path.read_text().splitlines() == [
        "step,loss,accuracy,grad_norm",
        "1,0.12345679,0.5,",
        "2,1e-09,,3",
    ]


def test_steps_of_a_long_run_are_written_in_full(tmp_path: Path):
    path = tmp_path / "history.csv"
    write_history(path, [{"step": 123_456_789, "loss": 1.0}])

    assert path.read_text() == "step,loss\n123456789,1\n"
