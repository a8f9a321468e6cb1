"""`make chat`: from a pipe, in a real terminal, and where there is nobody to talk to."""

import copy
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlhf.model_folders import save_model
from tasks import chat
from tasks.chatting.policy import ChatError, last_policy
from tests import chat_world, tiny
from tests.chat_world import asked, chosen
from tests.waiting import eventually, is_waiting

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 300

template = pytest.fixture(scope="module")(chat_world.template)
root = pytest.fixture(chat_world.root)


def test_each_line_gets_one_line_of_the_last_policy_and_of_sft_beside_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = "Sam: where is my parcel?\n\n/reset\nKim: my lamp is broken.\n/quit\nnot asked\n"
    code, alone, err = asked(monkeypatch, capsys, text)
    assert (code, len(alone), err) == (0, 2, "")

    second = asked(monkeypatch, capsys, text, "--policy", "models/rounds/r2/policy")
    first = asked(monkeypatch, capsys, text, "--policy", "models/rounds/r1/policy")
    sft = asked(monkeypatch, capsys, text, "--policy", "models/sft")
    assert second[1] == alone != first[1]

    both = asked(monkeypatch, capsys, text, "--sft")[1]
    assert both == [
        f"{name}\t{line}"
        for pair in zip(alone, sft[1], strict=True)
        for name, line in zip(("policy", "sft"), pair, strict=True)
    ]
    assert asked(monkeypatch, capsys, text, "--seed", "1")[1] != alone


HEAVY = {"datasets", "dvc", "great_expectations", "mlflow", "pandas", "prefect", "sklearn"}
"""Each takes a second and more to import, of the five in which a first answer is wanted."""


@pytest.mark.long
def test_a_first_answer_waits_for_no_library_but_those_of_the_model(root: Path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tasks.chat", "--max-new-tokens", "2"],
        input="Sam: where is my parcel?\n",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert {"torch", "transformers"} <= imported
    assert imported & HEAVY == set()


def test_the_likeliest_tokens_do_not_depend_on_the_seed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = "Sam: where is my parcel?\n"
    options = ("--temperature", "0", "--seed")
    one, two = (asked(monkeypatch, capsys, text, *options, seed) for seed in "12")
    assert one == two
    assert (one[0], len(one[1]), one[2]) == (0, 1, "")
    short = asked(monkeypatch, capsys, text, *options, "1", "--max-new-tokens", "2")
    assert 0 < len(short[1][0]) < len(one[1][0])


@pytest.mark.long
def test_where_mlflow_cannot_say_the_user_hears_how_to_name_a_policy(root: Path):
    store = root / ".work/mlflow/mlflow.db"
    store.parent.mkdir(parents=True)
    store.write_text("no database at all")
    with pytest.raises(ChatError, match=r"MLflow cannot .* POLICY=models/rounds/r1/policy"):
        chosen(root)


@pytest.mark.parametrize(
    ("gone", "options", "problem"),
    [
        ("models", [], "no policy yet: `make repro` trains one"),
        ("models/rounds", [], "trains one; or talk to SFT: make chat POLICY=models/sft"),
        ("models/sft", ["--sft"], "models/sft: no such model folder"),
        ("", ["--policy", "models/r9"], "models/r9: no such model folder"),
    ],
)
def test_nobody_to_talk_to_is_one_line_before_anything_is_typed(
    gone: str,
    options: list[str],
    problem: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    if gone:
        shutil.rmtree(root / gone)
    code, lines, err = asked(monkeypatch, capsys, "", *options)
    assert (code, lines, err.count("\n")) == (2, [], 1)
    assert problem in err


def piped(root: Path, text: bytes, *options: str, **more: str) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of a chat in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tasks.chat", "--max-new-tokens", "4", *options],
        cwd=root,
        input=text,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | more,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


@pytest.mark.long
def test_a_line_that_is_no_utf8_gets_its_answer(root: Path):
    code, lines, err = piped(root, b"Sam: my caf\xe9 is cold.\nKim: so is mine.\n", LC_ALL="C")

    assert (code, len(lines), err) == (0, 2, "")


def test_weights_or_a_temperature_that_give_no_numbers_are_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code, _, err = asked(monkeypatch, capsys, "Sam: hi.\n", "--temperature", "1e-44")
    assert (code, err.count("\n")) == (2, 1)

    policy = tiny.llama(2, vocabulary=len(tiny.tokenizer()))
    policy.lm_head.weight.data[:] = float("nan")
    save_model(policy, root / "models/rounds/r2/policy")
    code, _, err = asked(monkeypatch, capsys, "Sam: hi.\n")
    assert (code, err.count("\n")) == (2, 1)
    assert "not finite" in err


def test_a_line_that_is_too_long_for_the_template_does_not_end_the_chat(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = root / "models/rounds/r2/policy"
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    text = f"{'a' * 1_000_001}\nKim: hi.\n"

    code, lines, err = asked(monkeypatch, capsys, text)

    assert (code, len(lines), err) == (0, 2, "")
    assert "1000000" in lines[0].replace(",", "")
    assert lines[1] == asked(monkeypatch, capsys, "Kim: hi.\n")[1][0]


def test_the_last_policy_is_that_of_the_last_round_of_the_params(root: Path):
    (root / "params.yaml").write_text("rounds: {r2: {}, r1: {}, r3: {}}\n")
    assert last_policy(root) == Path("models/rounds/r1/policy")


def test_the_temperature_is_that_of_ppo_where_params_have_one(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text, params = "Sam: where is my parcel?\n", root / "params.yaml"
    hot = asked(monkeypatch, capsys, text, "--temperature", "9")
    assert hot[1] != asked(monkeypatch, capsys, text)[1]

    params.write_text("rounds: {r1: {}, r2: {}}\nppo: {sampling: {temperature: 9.0}}\n")
    assert asked(monkeypatch, capsys, text) == hot
    params.write_text("rounds: {r1: {}, r2: {}}\n")
    usual = asked(monkeypatch, capsys, text, "--temperature", "0.9")
    assert asked(monkeypatch, capsys, text) == usual


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]):
    for option, value, number in (
        ("--temperature", "-1", "a number, 0"),
        ("--temperature", "inf", "a number, 0"),
        ("--max-new-tokens", "0", "a whole number, 1"),
        ("--max-new-tokens", "1.5", "a whole number, 1"),
    ):
        with pytest.raises(SystemExit) as end:
            chat.main([option, value])
        assert end.value.code == 2
        assert f"expected {number} or more, found {value}\n" in capsys.readouterr().err


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, root: Path) -> None:
        self.end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tasks.chat", "--sft", "--max-new-tokens", "20"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.shown.count(text) < times:
            assert time.monotonic() < deadline, self.shown
            self.shown += os.read(self.end, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())


@pytest.mark.long
@pytest.mark.parametrize("leaving", ["/quit\n", "\x04", "Ctrl-C"])
def test_in_a_terminal_one_types_before_the_models_are_there_and_leaves_cleanly(
    root: Path, leaving: str
):
    terminal = Terminal(root)
    terminal.until("> ")
    assert "policy" not in terminal.shown, "the prompt comes before the models"
    if leaving == "/quit\n":
        terminal.type("Sam: where is my parcel?\n")
        terminal.until("> ", times=2)
        for said in ("policy: models/rounds/r2/policy", "sft: models/sft"):
            assert said in terminal.shown
        assert terminal.shown.count("policy: ") == terminal.shown.count("sft: ") == 2
        terminal.type("/reset\n")
        terminal.until("> ", times=3)
    if leaving == "Ctrl-C":
        # readline shows the prompt a moment before it waits, and what comes in between is lost.
        eventually(lambda: is_waiting(terminal.process.pid))
        os.killpg(terminal.process.pid, signal.SIGINT)
    else:
        terminal.type(leaving)
    assert terminal.process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in terminal.shown
    os.close(terminal.end)
