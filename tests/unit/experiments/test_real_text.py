"""The data of `real_text`: what evaluates has trained nothing, and no text is on two sides."""

import json
import zipfile
from pathlib import Path

import pytest

from experiments.real_text.__main__ import OVERLAY
from experiments.real_text.worlds import FILES, WORLDS, World
from tasks.own_data.rows import own_split
from tasks.params.loading import read_yaml
from tasks.params.prepare import FilesParams


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both data sets in the form of their files, with texts that were made up for this test."""
    folder = tmp_path_factory.mktemp("data")
    polite = folder / "polite_instructions"
    polite.mkdir()
    rows = [
        {
            "id": f"x-{n}",
            "source": "made up",
            "prompt": f"Add {n} and 1.",
            "chosen": f"{n + 1}, gladly.",
            "rejected": f"{n + 1}, obviously.",
            "meta": {},
        }
        for n in range(200)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (polite / "preferences.jsonl").write_text(lines, encoding="utf-8")
    raw = folder / "sentiment" / "raw"
    raw.mkdir(parents=True)
    with zipfile.ZipFile(raw / "sentence_polarity.zip", "w") as archive:
        for side, word in (("pos", "good"), ("neg", "bad")):
            text = "\n".join(
                f"film {n % 90} is a {word} one , that is {n} times {word}" for n in range(300)
            )
            archive.writestr(f"sentence_polarity/rt-polarity.{side}", text)
    with zipfile.ZipFile(raw / "movie_reviews.zip", "w") as archive:
        archive.writestr("movie_reviews/README", "nothing")
        for side, word in (("pos", "fine"), ("neg", "poor")):
            for n in range(40):
                lines = "\n".join(
                    f"part {k} of review {n} tells of a {word} film , and of no other"
                    for k in range(9)
                )
                archive.writestr(f"movie_reviews/{side}/cv{n:03}.txt", lines)
    return folder


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest, data: Path) -> World:
    return WORLDS[request.param](data, FILES)


def test_prompts_of_evaluation_train_nothing(world: World):
    trained = [*world.demonstrations, *world.pairs]
    assert {own_split(row["prompt"], FILES) for row in trained} == {"train"}
    assert {own_split(row["prompt"], FILES) for row in world.unseen} == {"heldout", "test"}
    assert {own_split(prompt, FILES) for prompt in world.prompts} == {"train", "heldout", "test"}


def test_no_text_trains_the_judge_and_the_pipeline(world: World):
    ours = [*world.pairs, *world.unseen]
    texts = {(row["prompt"], row[side]) for row in ours for side in ("chosen", "rejected")}
    judged = {(r["prompt"], r[side]) for r in world.judge_pairs for side in ("chosen", "rejected")}
    assert judged
    assert not texts & judged
    assert not judged & {(row["prompt"], row["response"]) for row in world.demonstrations}


def test_the_better_response_is_the_chosen_one(data: Path):
    polite, sentiment = (WORLDS[name](data, FILES) for name in ("polite", "sentiment"))
    for row in [*polite.pairs, *polite.judge_pairs, *polite.unseen]:
        assert row["chosen"].endswith("gladly.")
        assert row["rejected"].endswith("obviously.")
    for row in [*sentiment.pairs, *sentiment.unseen]:
        assert row["prompt"].split(": ")[1].startswith("film")
        assert ("good" in row["chosen"], "bad" in row["rejected"]) == (True, True)
    for row in sentiment.judge_pairs:
        assert ("fine" in row["chosen"], "poor" in row["rejected"]) == (True, True)


def test_sft_learns_both_kinds_so_that_ppo_has_something_to_choose(data: Path):
    shown = [row["response"] for row in WORLDS["polite"](data, FILES).demonstrations]
    gladly = sum(response.endswith("gladly.") for response in shown)
    assert 0.35 < gladly / len(shown) < 0.65
    told = [row["response"] for row in WORLDS["sentiment"](data, FILES).demonstrations]
    assert 0.35 < sum("good" in response for response in told) / len(told) < 0.65


def test_no_prompt_of_the_page_is_in_the_data(world: World):
    assert not set(world.shown) & set(world.prompts)


def test_the_split_is_that_of_the_params_of_the_run():
    params = read_yaml(OVERLAY)["common"]["prepare"]["files"]
    assert FilesParams(**params) == FILES
