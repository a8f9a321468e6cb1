"""Conversations that `tasks.forget` removes stay out, in whatever words they are written."""

import json
from typing import Any

import pytest

from preferences.demonstrations import read_demonstrations
from preferences.withdrawals import WITHDRAWN_TEXTS, load_withdrawals
from tasks.forget import main
from tests.traced_world import World


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
