"""What is forgotten is found in files of one's own, in whatever form they have it."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from feedback.annotators import FileAnnotator, LabelParams
from feedback.formats.label_studio import to_tasks
from feedback.judgments import Pair
from preferences.records import Judgment, Prompt, pair_id, prompt_text
from preferences.source_params import SourceParams
from preferences.sources import gather
from tasks.forget import LEFT_TO_YOU, main
from tasks.forgetting.own_rows import without
from tasks.forgetting.wanted import Wanted, WantedKind
from tests.traced_world import World, digest, lines
from tests.unit.tasks.forgetting.asked_pairs import two_pairs

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


@pytest.mark.parametrize("asked", [("annotator", "ann"), ("source", "human")])
def test_judgments_without_an_id_become_skips_so_that_their_round_does_not_wait(
    tmp_path: Path, asked: tuple[WantedKind, str]
) -> None:
    """The keys that data/README.md asks for have none."""
    pairs = two_pairs()
    said = [
        {"pair_id": pair.pair_id, "round": "r1", "annotator_id": name, "kind": kind, "choice": "a"}
        for pair in pairs
        for name, kind in (("ann", "human"), ("bob", "llm"))
    ]
    own = tmp_path / "judgments.jsonl"
    own.write_text(lines(said))

    own.write_bytes(without(own, Wanted(*asked)))

    params = LabelParams(annotators="file", file=str(own), overlap=2)
    found = FileAnnotator(own, params).judge(pairs)
    assert sorted((one.annotator_id, one.choice) for one in found) == [
        ("bob", "a"), ("bob", "a"), ("withdrawn-1", "skip"), ("withdrawn-2", "skip"),
    ]  # fmt: skip


def test_a_folder_of_judgments_is_read_as_before_with_skips_in_it(tmp_path: Path) -> None:
    pair = Pair(
        pair_id=pair_id("p", "x", "y"), round="r1", prompt="p", response_a="x", response_b="y"
    )
    of_policies = {"prompt_id": "p", "policy_a": "0", "policy_b": "1"}
    (tmp_path / "comparisons.jsonl").write_text(lines([asdict(pair) | of_policies]))
    own = tmp_path / "judgments.jsonl"
    said = [
        Judgment.of(
            pair, annotator_id=name, kind="human", annotator_version="v", choice=choice
        ).to_row()
        for name, choice in (("ann", "a"), ("bob", "b"))
    ]
    own.write_text(lines(said))

    own.write_bytes(without(own, Wanted("annotator", "ann")))

    (found,) = gather([SourceParams(path=str(tmp_path))], heldout_fraction=0.0)
    assert [(row.chosen, row.rejected) for row in found.rows] == [("y", "x")]


def of_hh(chosen: str, rejected: str, *before: str) -> dict[str, str]:
    """A pair as Anthropic's HH has it; what was said before ends with the prompt's last turn."""
    turns = "".join(f"\n\n{('Human', 'Assistant')[n % 2]}: {said}" for n, said in enumerate(before))
    start = f"{turns}\n\nAssistant:"
    return {"chosen": f"{start} {chosen}", "rejected": f"{start} {rejected}"}


def of_trl(chosen: str, rejected: str, *before: str) -> dict[str, list[dict[str, str]]]:
    """A pair of whole conversations, as TRL has it without a prompt."""
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": said} for n, said in enumerate(before)]
    sides = {"chosen": chosen, "rejected": rejected}
    return {side: [*turns, {"role": "assistant", "content": said}] for side, said in sides.items()}


@pytest.mark.parametrize("form", [of_hh, of_trl])
def test_pairs_whose_prompt_is_what_both_sides_begin_with_go_with_it(world: World, form) -> None:
    own = world.root / "mine.jsonl"
    rows = [
        form("I saw some.", "I saw none.", "Where is Kim?", "Who?", "Kim Miller."),
        form("I saw some.", "I saw none.", "Where is Kim?", "Who?", "Kim Lee."),
        form("At home.", "Ask her.", "Where is Kim?"),
    ]
    own.write_text(lines(rows))
    params = world.root / "params.yaml"
    named = "\nprepare:\n  sources: [{path: mine.jsonl}]\n"
    params.write_text(params.read_text().replace("\nprepare:\n", named))
    (gathered,) = gather([SourceParams(path=str(own))], heldout_fraction=0.0)
    prepared = world.root / "data/prepared/preferences/train.jsonl"
    prepared.parent.mkdir(parents=True)
    prepared.write_text(lines([row.to_row() for row in gathered.rows]))

    assert main(["--prompt", gathered.rows[0].prompt_id, "--yes"]) == 0

    assert own.read_text() == lines(rows[1:])
