"""Commands of README and tutorial: each is known to its test, and make has its targets.

tests/integration/test_documented_commands.py runs them, which takes minutes.
"""

import re
import subprocess

import pytest

from tests.documents import DOCUMENTS, NOT_RUN, ROOT, Command, File, filled_in, is_run, read, steps

VARIANT = re.compile(r"VARIANT=(\w+)")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def commands(document: str) -> list[Command]:
    return [step for step in steps(read(document)) if isinstance(step, Command)]


def files(document: str) -> list[File]:
    return [step for step in steps(read(document)) if isinstance(step, File)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_test_knows_what_to_do_with_every_command(document: str):
    found = commands(document)

    assert len(found) >= 8
    for command in found:
        # Either raises for what nobody has thought of.
        if is_run(command):
            filled_in(command)


def test_what_is_installed_beside_our_packages_leaves_their_versions_alone():
    """Without the constraints pip takes another Prefect where a package of others wants one."""
    guides = [read(str(path.relative_to(ROOT))) for path in (ROOT / "docs").rglob("*.md")]
    given = [line for text in guides for line in re.findall(r"pip install [^`#\n]+", text)]
    ours = [line for line in given if re.search(r" prefect-|'\.\[", line)]

    assert len(ours) >= 5
    assert [line for line in ours if " -c constraints.txt " not in line] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_has_every_target_and_reads_every_variable(document: str):
    for command in commands(document):
        if not command.text.startswith("make "):
            continue
        done = subprocess.run(
            ["make", "--dry-run", *command.text.split()[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for name in re.findall(r"\b([A-Z]+)=", command.text):
            assert re.search(rf"\$\((value )?{name}\)", MAKEFILE), command.text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variant_has_its_file(document: str):
    shipped = {path.stem for path in (ROOT / "params").glob("*.yaml")}
    written = {file.path.removeprefix("params/").removesuffix(".yaml") for file in files(document)}

    named = {name for command in commands(document) for name in VARIANT.findall(command.text)}

    assert named - shipped - written == set()


def test_what_is_not_run_is_in_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))

    assert {command.split()[1] for command in NOT_RUN if command.startswith("make ")} <= targets


def test_an_unknown_command_is_refused():
    with pytest.raises(LookupError, match="curl"):
        is_run(Command("curl http://127.0.0.1"))


def test_words_in_capitals_are_filled_in_and_an_unknown_one_is_refused():
    asked = Command("make rollback WHO=NAME WHY=REASON")
    assert filled_in(asked) == "make rollback WHO=me WHY=tried"
    with pytest.raises(LookupError, match="what THING is"):
        filled_in(Command("python -m tasks.lineage THING"))


def test_steps_come_in_order_from_blocks_spans_and_files():
    markdown = (
        "Type `make repro`, edit `params.yaml`:\n"
        "```yaml\n# params/mine.yaml\nppo: {kl_coef: 1}\n```\n"
        "```bash\nmake ui   # pages\ndvc push\n```\n```text\nmake nothing\n```\n"
        "| a | `make sync` |\n"
    )

    assert list(steps(markdown)) == [
        Command("make repro"),
        File("params/mine.yaml", "ppo: {kl_coef: 1}\n"),
        Command("make ui"),
        Command("dvc push"),
        Command("make sync"),
    ]


def test_make_annotate_names_a_variant_without_a_workspace():
    done = subprocess.run(
        ["make", "annotate", "VARIANT=typo", "READY="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "there is no workspace of a variant 'typo'; make repro VARIANT=typo makes it"
    )
