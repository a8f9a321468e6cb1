"""A round that was taken out of params.yaml leaves the folders on which the report depends."""

import hashlib
import json
from pathlib import Path

import pytest

from tasks.workspace.former_rounds import put_away_former_rounds

HEAD = "schema: '2.0'\nstages:\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two rounds with a model and a file each, whole in the cache, as DVC records them."""
    text = HEAD + entry("sft", {"models/sft": folder(tmp_path, "models/sft")})
    for key in ("r1", "r2"):
        model, rows = f"models/rounds/{key}/policy", f"data/rounds/{key}/rows.jsonl"
        text += entry(f"ppo@{key}", {model: folder(tmp_path, model)})
        text += entry(f"sample@{key}", {rows: file(tmp_path, rows)})
    (tmp_path / "dvc.lock").write_text(text)
    return tmp_path


def entry(stage: str, outs: dict[str, str]) -> str:
    lines = "".join(f"    - path: {path}\n      md5: {md5}\n" for path, md5 in outs.items())
    return f"  {stage}:\n    cmd: python\n    outs:\n{lines}"


def cached(root: Path, content: bytes, kind: str = "") -> str:
    digest = hashlib.md5(content).hexdigest() + kind
    kept = root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return digest


def file(root: Path, path: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(path)
    return cached(root, path.encode())


def folder(root: Path, path: str) -> str:
    listing = [{"md5": file(root, f"{path}/weights"), "relpath": "weights"}]
    return cached(root, json.dumps(listing).encode(), ".dir")


def found(root: Path) -> set[str]:
    paths = [path for top in ("data", "models") for path in (root / top).rglob("*")]
    return {path.relative_to(root).as_posix() for path in paths}


def test_outputs_entries_and_empty_folders_of_a_former_round_go(root: Path) -> None:
    everything, text = found(root), (root / "dvc.lock").read_text()

    assert put_away_former_rounds(root, ["r1"]) == ["r2"]

    assert found(root) == {path for path in everything if "r2" not in path}
    start, end = text.index("  ppo@r2:"), len(text)
    assert (root / "dvc.lock").read_text() == text[:start] + text[end:]
    assert put_away_former_rounds(root, ["r1"]) == []


def test_what_the_cache_does_not_have_stays(root: Path) -> None:
    (root / "models/rounds/r2/policy/weights").write_text("edited")
    rows = hashlib.md5(b"data/rounds/r2/rows.jsonl").hexdigest()
    (root / ".dvc/cache/files/md5" / rows[:2] / rows[2:]).unlink()
    before = found(root), (root / "dvc.lock").read_text()

    assert put_away_former_rounds(root, ["r1"]) == []

    assert (found(root), (root / "dvc.lock").read_text()) == before


DEFINITION = """\
stages:
  sft: {cmd: python, outs: [models/sft]}
  sample:
    foreach: ${rounds}
    do: {cmd: python, outs: ["data/rounds/${key}/rows.jsonl"]}
  ppo:
    foreach: ${rounds}
    do: {cmd: python, outs: ["models/rounds/${key}/policy"]}
"""


def test_outputs_that_a_checkout_of_another_commit_left_go_too(root: Path) -> None:
    """Its dvc.lock knows nothing of the second round; a file that nobody has cached stays."""
    (root / "dvc.yaml").write_text(DEFINITION)
    text = (root / "dvc.lock").read_text()
    only_r1 = text[: text.index("  ppo@r2:")]
    (root / "dvc.lock").write_text(only_r1)
    (root / "models/rounds/r2/notes").write_text("mine")
    (root / "data/rounds/r3").mkdir()
    (root / "data/rounds/r3/rows.jsonl").write_text("not cached")
    everything = found(root)

    assert put_away_former_rounds(root, ["r1"]) == ["r2"]

    gone = {f"models/rounds/r2/policy{name}" for name in ("", "/weights")}
    gone |= {f"data/rounds/r2{name}" for name in ("", "/rows.jsonl")}
    assert found(root) == everything - gone
    assert (root / "dvc.lock").read_text() == only_r1


def test_what_dvc_lock_names_otherwise_stays_though_the_cache_has_it(root: Path) -> None:
    """Somebody put another version there; and a draft of an output is no round's."""
    (root / "dvc.yaml").write_text(DEFINITION)
    rows = root / "data/rounds/r2/rows.jsonl"
    rows.write_text("another version")
    cached(root, b"another version")
    file(root, "data/rounds/.r9.draft/rows.jsonl")

    assert put_away_former_rounds(root, ["r1"]) == ["r2"]  # Of its model.

    assert rows.read_text() == "another version"
    assert "  sample@r2:" in (root / "dvc.lock").read_text()
    assert (root / "data/rounds/.r9.draft/rows.jsonl").is_file()


def test_what_the_cache_has_damaged_stays(root: Path) -> None:
    weights = hashlib.md5(b"models/rounds/r2/policy/weights").hexdigest()
    (root / ".dvc/cache/files/md5" / weights[:2] / weights[2:]).write_text("other bytes")

    assert put_away_former_rounds(root, ["r1"]) == ["r2"]  # Of its rows.

    assert (root / "models/rounds/r2/policy/weights").is_file()
    assert "  ppo@r2:" in (root / "dvc.lock").read_text()


def test_all_rounds_of_params_yaml_stay(root: Path) -> None:
    before = found(root)
    assert put_away_former_rounds(root, ["r1", "r2", "r3"]) == []
    assert found(root) == before
