"""What README and tutorial say to type, read from their Markdown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/tutorial.md")

PIECES = re.compile(r"```(?P<language>\w*)\n(?P<block>.*?)```|`(?P<span>[^`\n]+)`", re.DOTALL)
PROGRAMS = re.compile(r"(make|dvc|git|python|pip|prefect|mlflow|docker|cd|export|\.) \S")
FILE = re.compile(r"# (?P<path>params/\w+\.yaml)\n(?P<text>.+)", re.DOTALL)

KNOWN = re.compile(r"(make|dvc|git|python -m) \S|\(?\. \.venv/bin/activate( && |$)")
NOT_RUN = {
    "make setup": "has run before any of this suite could",
    "make test": "would run this suite within itself",
    "make test-long": "would run pipelines beside pipelines; .ci/run has it",
    "make check": "formats and types of the whole repository, not of a tiny world; .ci/run has it",
    "make mutants": "half an hour",
    "make torture": "kills, damages and starves every training stage, which takes long",
    "make verify": "repeats the run of a commit; .ci/run has two stages of it",
    "make repro PRESET=smollm2-135m MODEL=FOLDER": "tests/integration/test_your_model.py has it",
    "python -m experiments NAME --seeds 0-3": "many runs; tests/integration/test_experiments.py",
    "make chat": "waits for somebody to talk; tests/integration/test_chat.py has it",
}
"""Commands of the documents that are only looked up in the Makefile, and why."""
SERVERS = ("make ui", "make annotate")
BLANK = re.compile(r"(?<=[ =])[A-Z]+(?= |$)")
BLANKS = {
    "FILE": "mine/preferences.jsonl",
    "ANSWERS": "mine/answers.jsonl",
    "DIR": "mine/report",
    "POLICY": "final",
    "ANNOTATOR": "sim-1",
    "A": "HEAD",
    "B": ".",
    "NAME": "me",
    "REASON": "tried",
}
"""What stands for a word in capitals, in the tiny world in which the commands are run."""


@dataclass(frozen=True)
class Command:
    """A line to type."""

    text: str


@dataclass(frozen=True)
class File:
    """A file to write: a YAML block whose first line names it."""

    path: str
    text: str


def steps(markdown: str) -> Iterator[Command | File]:
    """Commands of bash blocks and code spans, and files to write, in the order of the document."""
    for piece in PIECES.finditer(markdown):
        if piece["span"] is not None:
            if PROGRAMS.match(piece["span"]):
                yield Command(piece["span"])
        elif piece["language"] in ("bash", "sh", "shell", "console"):
            lines = (re.sub(r"\s+# .*", "", line).strip() for line in piece["block"].splitlines())
            yield from (Command(line) for line in lines if line)
        elif piece["language"] == "yaml" and (named := FILE.match(piece["block"])):
            yield File(named["path"], named["text"])


def read(document: str) -> str:
    """The text of a document of the repository."""
    return (ROOT / document).read_text(encoding="utf-8")


def is_server(command: Command) -> bool:
    """Whether it runs until Ctrl-C."""
    return command.text.startswith(SERVERS)


def is_run(command: Command) -> bool:
    """Whether it is run to its end; False only for what NOT_RUN names.

    Raises:
        LookupError: nobody has said what is to be done with such a command.
    """
    if command.text in NOT_RUN:
        return False
    if not KNOWN.match(command.text):
        raise LookupError(f"{command.text!r}: say in tests/documents.py how this is tested")
    return True


def filled_in(command: Command) -> str:
    """With FILE, DIR and the like replaced.

    Raises:
        LookupError: nobody has said what one of them stands for.
    """

    def known(found: re.Match[str]) -> str:
        if found[0] not in BLANKS:
            raise LookupError(f"{command.text!r}: say in tests/documents.py what {found[0]} is")
        return BLANKS[found[0]]

    return BLANK.sub(known, command.text)
