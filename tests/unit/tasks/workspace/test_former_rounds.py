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


def test_all_rounds_of_params_yaml_stay(root: Path) -> None:
    before = found(root)
    assert put_away_former_rounds(root, ["r1", "r2", "r3"]) == []
    assert found(root) == before
