"""A checkout whose policies answer in a chat: SFT, and those of two of three rounds."""

import io
import shutil
import sys
from pathlib import Path

import pytest

from rlhf.model_folders import save_model
from tasks import chat
from tasks.chatting.policy import ask_production, choose_policy
from tests import tiny

ROOT = Path(__file__).resolve().parents[1]


def write_policy(folder: Path, seed: int) -> None:
    tokenizer = tiny.tokenizer()
    save_model(tiny.llama(seed, vocabulary=len(tokenizer)), folder)
    tokenizer.save_pretrained(folder)


def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SFT, and the policies of two of three rounds."""
    root = tmp_path_factory.mktemp("chat")
    shutil.copy(ROOT / "params.yaml", root)
    write_policy(root / "models/sft", 0)
    for number in (1, 2):
        write_policy(root / f"models/rounds/r{number}/policy", number)
    return root


def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(template, tmp_path / "root"))
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


def asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *options: str
) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of a chat from a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    code = chat.main(["--max-new-tokens", "20", *options])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def chosen(root: Path) -> tuple[Path, str]:
    """What is chosen where nobody names a policy; MLflow is asked in a process of its own."""
    return choose_policy(root, None, ask_production(root))
