"""A workspace for `make doctor`: one output folder, in DVC's cache and in dvc.lock."""

import hashlib
import shutil
from pathlib import Path

import pytest

from tasks.doctor import main


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


ROOT = Path(__file__).resolve().parents[1]


def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with one output folder in cache and dvc.lock, as DVC writes them."""
    files = {"a.txt": b"first", "sub/b.txt": b"second"}
    for name, content in files.items():
        path = tmp_path / "results/sft" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    rows = [f'{{"md5": "{md5(content)}", "relpath": "{name}"}}' for name, content in files.items()]
    listing = f"[{', '.join(rows)}]".encode()
    for content, ending in (*[(c, "") for c in files.values()], (listing, ".dir")):
        name = md5(content)
        cached = tmp_path / ".dvc/cache/files/md5" / name[:2] / (name[2:] + ending)
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.write_bytes(content)
        cached.chmod(0o444)
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  sft:\n    cmd: x\n    outs:\n"
        f"    - {{path: results/sft, hash: md5, md5: {md5(listing)}.dir}}\n"
    )
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
    return tmp_path


def variant(root: Path) -> Path:
    """A variant with the same outputs, which shares the cache."""
    folder = root / ".work/variants/other"
    shutil.copytree(root / "results", folder / "results")
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        shutil.copy(root / name, folder)
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config.local").write_text(f"[cache]\ndir = {root}/.dvc/cache\n")
    return folder


def doctor(capsys, *arguments: str) -> tuple[int, list[str]]:
    code = main(list(arguments))
    return code, capsys.readouterr().out.splitlines()
