"""Conversations that `tasks.forget` removes stay out, in whatever words they are written."""

import json
from typing import Any

import pytest

from preferences.demonstrations import read_demonstrations
from preferences.withdrawals import WITHDRAWN_TEXTS, load_withdrawals
from tasks.forget import main
from tests.traced_world import World, lines


def turns(*said: str) -> list[dict[str, str]]:
    """A conversation that the user opens."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": turns("hi", "yes?", "Kim asks", "Kim, this is it", "thanks", "bye")},
        {"messages": turns("Kim asks", "here")},
        {"messages": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "Kim said"}]},
        {"prompt": "x", "completion": [{"role": "assistant", "content": "Kim said"}]},
        {"prompt": "x", "completion": "Kim said"},
    ],
    ids=["of many turns", "of two", "in other words", "completion", "text"],
)
def test_a_conversation_that_was_forgotten_stays_out_when_its_file_comes_back(
    world: World, row: dict[str, Any]
) -> None:
    own = world.root / "mine.jsonl"
    content = json.dumps(row) + "\n" + json.dumps({"prompt": "x", "response": "y"}) + "\n"
    own.write_text(content)
    params = world.root / "params.yaml"
    files = "  files: {prompts: asked.jsonl, demonstrations: mine.jsonl, corpus: said.jsonl}\n"
    params.write_text(params.read_text().replace("\nprepare:\n", f"\nprepare:\n{files}"))

    assert main(["--matching", "Kim", "--yes"]) == 0
    assert "Kim" not in own.read_text()
    own.write_text(content)

    withdrawn = load_withdrawals(world.root / WITHDRAWN_TEXTS)
    assert [one["response"] for one in withdrawn.kept(read_demonstrations(own))] == ["y"]


def test_of_votes_of_ones_own_the_response_is_withdrawn_and_not_what_others_answered_as_well(
    world: World,
) -> None:
    own = world.root / "votes.jsonl"
    asked = {"prompt": "Tell me a story.", "votes": ["a"], "workers": ["w"]}
    rows = [
        {**asked, "response_a": "Kim lived in a wood.", "response_b": "No."},
        {**asked, "response_a": "A fox lived in a wood.", "response_b": "No."},
    ]
    own.write_text(lines(rows))
    params = world.root / "params.yaml"
    named = "\nprepare:\n  sources: [{path: votes.jsonl}]\n"
    params.write_text(params.read_text().replace("\nprepare:\n", named))

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert own.read_text() == lines(rows[1:])
    withdrawn = load_withdrawals(world.root / WITHDRAWN_TEXTS)
    pairs = [{"prompt": r["prompt"], "chosen": r["response_a"], "rejected": "No."} for r in rows]
    assert withdrawn.kept(pairs) == pairs[1:]
