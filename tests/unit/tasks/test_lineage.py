"""`python -m tasks.lineage`: what it prints, and how it refuses."""

import json
from pathlib import Path

import pytest

from tasks.lineage import main
from tests.traced_world import START, World, object_path, one_round


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = one_round(tmp_path / "world", "ann", "bo")
    monkeypatch.chdir(world.root)
    return world


def test_a_policy_is_counted_by_source_and_annotator(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["r1"]) == 0

    first, *table = capsys.readouterr().out.splitlines()
    assert first == (
        f"models/rounds/r1/policy (md5 {world.now['models/rounds/r1/policy'][0]}) was formed by"
    )
    assert [line.split() for line in table] == [
        ["what", "source", "annotator", "number"],
        ["demonstration", "support", "desk", "1"],
        ["document", "support", "desk", "1"],
        ["judgment", "human", "ann", "2"],
        ["judgment", "human", "bo", "2"],
        ["preference", "old", "data", "2"],
        ["prompt", "support", "desk", "4"],
    ]


def test_no_name_in_the_data_steers_the_terminal_or_ends_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = one_round(tmp_path / "world", "eve\x1b]0;owned\x07", "bo\nbo")
    monkeypatch.chdir(world.root)
    assert main(["r1"]) == 0
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines())
    judged = [line.split() for line in said.splitlines() if "judgment" in line]
    assert judged == [
        ["judgment", "human", "bo\\nbo", "2"],
        ["judgment", "human", "eve\\x1b]0;owned\\x07", "2"],
    ]


def test_every_item_is_listed_as_json(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["r1", "--items"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    judged = [row for row in rows if row["kind"] == "judgment" and row["annotator"] == "ann"]
    assert [sorted(row) for row in judged] == [
        ["annotator", "id", "kind", "prompt_id", "source", "use"]
    ] * 2
    assert {row["id"] for row in judged} == {i for i, name in world.judges.items() if name == "ann"}


def test_the_way_back_names_the_models_of_an_annotator(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--annotator", "bo"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "models/rounds/r1/reward",
        "models/rounds/r1/policy",
    ]

    assert main(["--annotator", "nobody"]) == 0
    assert capsys.readouterr().out == "annotator nobody: no model was formed by it\n"


def test_an_item_that_several_stages_read_counts_once_on_the_way_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A document, a demonstration that base and SFT learn from, and four prompts."""
    assert main(["--source", "support desk"]) == 0

    said = capsys.readouterr().out.splitlines()
    numbers = {line.split()[0]: line.partition("): ")[2] for line in said}
    assert numbers == {
        "models/base": "2 items",
        "models/sft": "2 items",
        "models/rounds/r1/reward": "6 items",
        "models/rounds/r1/policy": "6 items",
    }


def test_a_model_that_was_taken_as_it_is_has_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path / "taken")
    world.prepare(["one"], ["one"])
    world.start(taken=True)
    monkeypatch.chdir(world.root)

    assert main(["base"]) == 0

    assert capsys.readouterr().out.splitlines()[1:] == [
        "  nothing that is recorded here: it was taken as it is"
    ]


@pytest.fixture
def branched(world: World) -> World:
    """On `runs/two` cy judged in place of ann and bo; checked out is what those formed."""
    world.commit("first")
    world.switch("runs/two")
    world.round("r1", START, ["cy"], "second")
    world.commit()
    world.switch("first")
    return world


def test_the_way_back_reaches_models_that_only_another_branch_has(
    branched: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--annotator", "cy"]) == 0

    digests = {p: branched.now[f"models/rounds/r1/{p}"][0] for p in ("reward", "policy")}
    assert capsys.readouterr().out.splitlines() == [
        f"models/rounds/r1/{part} (md5 {digest}): 4 items; runs/two"
        for part, digest in digests.items()
    ]

    assert main(["--annotator", "bo"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["2 items; main, first"] * 2

    assert main(["--annotator", "cy", "--rev", "first"]) == 0
    assert capsys.readouterr().out == "annotator cy: no model was formed by it\n"


def test_a_model_whose_data_are_not_here_is_named_and_hides_no_other(
    branched: World, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = branched.now["data/rounds/r1/judgments.jsonl"][0]
    object_path(branched.root, judged).unlink()

    assert main(["--annotator", "bo"]) == 0

    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "models/rounds/r1/reward",
        "models/rounds/r1/policy",
    ]
    model = branched.now["models/rounds/r1/reward"][0]
    assert said.err.count("\n") == 1
    assert said.err.startswith(
        f"not traced: models/rounds/r1/reward (md5 {model}) and 1 more: data/rounds/r1/judgments"
        f".jsonl with md5 {judged} is neither in the workspace nor in DVC's cache; "
    )

    assert main(["--annotator", "cy", "--rev", "runs/two"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (md5 ")[0] for line in lines] == [
        "models/rounds/r1/reward",
        "models/rounds/r1/policy",
    ]


def test_a_clone_without_the_cache_is_told_to_fetch_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = world.now["data/prepared"][0]
    object_path(world.root, prepared).unlink()

    assert main(["r1"]) == 2
    assert capsys.readouterr().err == (
        f"data/prepared with md5 {prepared} is neither in the workspace nor in DVC's cache; `dvc "
        "fetch --all-commits` brings what was pushed\n"
    )


def test_models_of_many_old_commits_whose_data_are_gone_take_four_lines(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.commit("first")
    for run in range(5):
        world.switch(f"runs/{run}")
        world.round("r1", START, [f"cy{run}"], f"run {run}")
        world.commit()
        object_path(world.root, world.now["data/rounds/r1/judgments.jsonl"][0]).unlink()
    world.switch("first")

    assert main(["--annotator", "bo"]) == 0

    said = capsys.readouterr()
    assert said.out.count("models/rounds/r1/") == 2
    lines = said.err.splitlines()
    assert len(lines) == 4
    assert all(" and 1 more: data/rounds/r1/judgments.jsonl" in line for line in lines[:3])
    assert lines[3].startswith("not traced, for other reasons: 4 more; --rev COMMIT ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one thing"),
        (["r1", "--annotator", "bo"], "name one thing"),
        (["r9"], "r9: no model of this name"),
        (["r1", "--rev", "nowhere"], "git show nowhere:dvc.lock"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_line_and_exit_code_2(
    world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_what_is_damaged_or_missing_is_one_line(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    (world.root / "params.yaml").write_text("final: [")
    assert refused("final").startswith("params.yaml: not YAML (")
    (world.root / "params.yaml").write_bytes(b"final: \xff")
    assert refused("final").startswith("params.yaml: expected UTF-8, found ")
    judgments = "data/rounds/r1/judgments.jsonl"
    object_path(world.root, world.now[judgments][0]).write_text('{"judgment_id": "1", "pai')
    assert refused("r1").startswith(
        f"{judgments}: its object {world.now[judgments][0]} in DVC's cache is"
    )
    (world.root / "dvc.lock").write_bytes(b"stages: \xff")
    assert refused("r1").startswith("dvc.lock: expected UTF-8, found ")
    (world.root / "dvc.lock").unlink()
    assert refused("r1").startswith(f"{world.root}: no dvc.yaml here; run this from the repository")
    (world.root / "dvc.yaml").touch()
    assert refused("r1") == f"{world.root}/dvc.lock: nothing has run here yet\n"


def test_of_a_commit_by_which_nothing_had_run_the_commit_is_named_and_not_what_is_checked_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = (world.root / "dvc.lock").read_bytes()
    world.commit()
    (world.root / "dvc.lock").unlink()
    world.commit()
    (world.root / "dvc.lock").write_bytes(lock)
    (world.root / "dvc.yaml").touch()

    assert main(["r1", "--rev", "HEAD"]) == 2

    assert capsys.readouterr().err == "HEAD:dvc.lock: nothing had run by this commit\n"


def test_the_way_back_outside_of_git_says_what_git_says(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.root / ".git").rename(world.root / "not.git")

    assert main(["--annotator", "ann"]) == 2

    assert capsys.readouterr().err.startswith(
        "git for-each-ref --format=%(refname): fatal: not a git"
    )


@pytest.mark.parametrize("asked", ["Jos\u00e9", "Jose\u0301"])
def test_an_annotator_is_found_in_either_spelling_of_unicode(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(one_round(tmp_path / "other", "Jos\u00e9", "Jose\u0301").root)
    assert main(["--annotator", asked]) == 0
    model, *_ = capsys.readouterr().out.splitlines()
    assert model.startswith("models/rounds/r1/reward")
    assert "4" in model.rsplit(":", 1)[1]
