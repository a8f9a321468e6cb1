"""A prompt is found in files of one's own whose form writes it in other letters than ours."""

import csv
import json
from pathlib import Path

import pytest

from feedback.formats.label_studio import to_tasks
from feedback.judgments import Pair
from preferences.records import Prompt, pair_id, prompt_text
from tasks.forget import LEFT_TO_YOU, main
from tests.traced_world import World, digest, lines

CONVERSATION = [{"role": "user", "content": "Who is Kim?"}]


def table(path: Path, prompt: Prompt) -> None:
    """As spreadsheet programs and pandas write it: a quote within a cell is doubled."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "prompt"], [1, prompt_text(prompt)]])


def tasks(path: Path, prompt: Prompt) -> None:
    """As the page exports it for Label Studio, which gives its data back with the annotations."""
    pair = Pair(
        pair_id=pair_id(prompt, "x", "y"), round="r1", prompt=prompt, response_a="x", response_b="y"
    )
    path.write_text(json.dumps(to_tasks([pair], []), ensure_ascii=False, indent=1))


@pytest.mark.parametrize(
    ("name", "write", "prompt"),
    [
        ("mine.csv", table, 'Where is "Kim\'s" order?'),
        ("mine.csv", table, CONVERSATION),
        ("mine.json", tasks, CONVERSATION),
    ],
    ids=["a quote in a table", "a conversation in a table", "a conversation in Label Studio"],
)
def test_the_file_is_left_to_the_person(
    world: World, capsys: pytest.CaptureFixture[str], name, write, prompt: Prompt
) -> None:
    known = digest(prompt_text(prompt))
    rows = world.root / "data/prepared/prompts/heldout.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(lines([{"prompt_id": known, "prompt": prompt}]))
    write(world.root / name, prompt)
    params = world.root / "params.yaml"
    named = f"  annotators: file\n  file: {name}\n"
    params.write_text(params.read_text().replace("  annotators: rubric\n", named))

    assert main(["--prompt", known, "--yes"]) == LEFT_TO_YOU

    assert f"for you to edit (not JSON Lines, pinned, or all of it): {name}\n" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("write", [table, tasks])
def test_another_conversation_is_not_taken_for_it(world: World, write) -> None:
    known = digest(prompt_text(CONVERSATION))
    rows = world.root / "data/prepared/prompts/heldout.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(lines([{"prompt_id": known, "prompt": CONVERSATION}]))
    write(world.root / "mine.json", [*CONVERSATION, {"role": "user", "content": "And Lea?"}])
    params = world.root / "params.yaml"
    named = "  annotators: file\n  file: mine.json\n"
    params.write_text(params.read_text().replace("  annotators: rubric\n", named))

    assert main(["--prompt", known, "--yes"]) == 0


def test_a_file_of_judgments_that_is_named_and_no_longer_in_use_is_searched(world: World) -> None:
    """`label.annotators` was file once, and is people now."""
    own = world.root / "mine.jsonl"
    judgment = {"judgment_id": "1", "pair_id": "p", "annotator_id": "ann", "kind": "human"}
    own.write_text(json.dumps(judgment | {"round": "r1", "choice": "a", "revision": 1}) + "\n")
    params = world.root / "params.yaml"
    named = "  annotators: people\n  file: mine.jsonl\n"
    params.write_text(params.read_text().replace("  annotators: rubric\n", named))

    assert main(["--annotator", "ann", "--yes"]) == 0

    assert '"ann"' not in own.read_text()
