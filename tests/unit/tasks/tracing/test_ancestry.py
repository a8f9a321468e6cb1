"""Lineage equals brute force: a world that notes, as it runs, what formed each of its models."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from preferences.records import NOBODY
from tasks.lineage import BACK, main
from tasks.tracing.ancestry import Ancestry, Model
from tasks.tracing.contents import ContentError
from tasks.tracing.records import RecordError
from tests.traced_world import KINDS, START, World, after, object_path, one_round, random_world


@pytest.fixture(scope="module", params=range(6))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return random_world(tmp_path_factory.mktemp("world"), request.param)


def models_of(world: World) -> list[str]:
    return [path for path in world.now if path.startswith("models/")]


def test_the_items_of_every_model_are_those_that_formed_it(world: World) -> None:
    ancestry = Ancestry(world.root)

    found = {
        path: frozenset((item.kind, item.id) for item in ancestry.items(ancestry.model(path)))
        for path in models_of(world)
    }

    assert found == {path: world.now[path][1] for path in models_of(world)}


def test_a_skip_that_stands_for_a_withdrawn_judgment_is_nobodys_and_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "withdrawn-1", NOBODY)
    world = World(tmp_path / "world")
    world.prepare(["one", "two", "three", "four"], ["one"])
    world.start()
    world.round("r1", START, ["ann", "withdrawn-1"], "first")
    ancestry = Ancestry(world.root)

    items = ancestry.items(ancestry.model("models/rounds/r1/reward"))

    judgments = [item for item in items if item.kind == "judgment"]
    assert [item.annotator for item in judgments] == ["ann", "ann"]


def test_each_run_behind_a_model_is_looked_at_once(world: World) -> None:
    """Several ways lead to most of them, twice as many with each round."""
    ancestry = Ancestry(world.root)

    for path in models_of(world):
        runs = [(ran.stage, ran.outs) for ran in ancestry.runs(ancestry.model(path))]
        assert [run for number, run in enumerate(runs) if run in runs[:number]] == []


def expected_back(world: World) -> dict[tuple[str, str], set[str]]:
    """(Option of the way back, value) -> the models, by what the world noted while it ran.

    Also of judgments and sources that formed none of today's models.
    """
    known = {"judgment": set(world.judges), "source": set(world.sources.values())}
    expected = defaultdict(set, {(name, one): set() for name in known for one in known[name]})
    for path in models_of(world):
        for item in world.now[path][1]:
            kind, id_ = item
            if kind == "judgment":
                expected["annotator", world.judges[id_]].add(path)
                expected["judgment", id_].add(path)
            if item in world.prompts:
                expected["prompt", world.prompts[item]].add(path)
            expected["source", world.sources[item]].add(path)
    return expected


def test_the_way_back_is_the_same_relation(world: World) -> None:
    """From each annotator, source, prompt and judgment."""
    ancestry = Ancestry(world.root)
    models = ancestry.models()

    found = {
        (name, value): {
            model.path
            for model in ancestry.formed_by(
                models, lambda item, name=name, value=value: BACK[name](item, value)
            )[0]
        }
        for name, value in expected_back(world)
    }

    assert found == expected_back(world)


@pytest.mark.parametrize("name", ["judgment", "source"])
def test_the_command_names_the_same_models_and_items(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {value: paths for (n, value), paths in expected_back(world).items() if n == name}
    value = max(expected, key=lambda one: (len(expected[one]) % len(models_of(world)), one))
    monkeypatch.chdir(world.root)

    assert main([f"--{name}", value]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert {line.split(" ")[0] for line in shown} == expected[value] != set()

    assert main([f"--{name}", value, "--items"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    meant = {path: {item for item in world.now[path][1] if value in (item[1], world.sources[item])}
             for path in expected[value]}  # fmt: skip
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        found[row["model"]].add((row["kind"], row["id"]))
    assert found == meant


def test_an_earlier_commit_answers_as_it_did_then(tmp_path: Path) -> None:
    world = one_round(tmp_path / "world", "ann")
    formed = world.now["models/rounds/r1/policy"][1]
    then = world.commit()
    world.round("r1", START, ["bo"], "second")
    world.commit()

    ancestry = Ancestry(world.root, then)
    items = list(ancestry.items(ancestry.model("r1")))

    assert {item.annotator for item in items if item.kind == "judgment"} == {"ann"}
    assert frozenset((item.kind, item.id) for item in items) == formed


def test_the_files_behind_a_policy_are_those_that_hold_its_items(tmp_path: Path) -> None:
    """And the pairs that judgments are about; what has one of them is known to contain it."""
    world = one_round(tmp_path / "world", "ann")
    listed = json.loads(object_path(world.root, world.now["data/prepared"][0]).read_text())
    prepared = {one["relpath"]: one["md5"] for one in listed}
    del prepared["prompts/heldout.jsonl"]
    rounds = (f"data/rounds/r1/{name}.jsonl" for name in ("comparisons", "judgments"))
    ancestry = Ancestry(world.root)

    parts = ancestry.parts(ancestry.model("r1"))

    assert {digest for part in parts for digest in ancestry.files(part)} == {
        *prepared.values(),
        *(world.now[path][0] for path in rounds),
    }


@pytest.fixture
def labelled(tmp_path: Path) -> World:
    return one_round(tmp_path / "world", "ann")


def test_each_judgment_says_what_became_of_it(labelled: World) -> None:
    ancestry = Ancestry(labelled.root)

    items = ancestry.items(ancestry.model("r1"))

    uses = [item.use for item in items if item.kind == "judgment"]
    assert uses == ["r1 train", "r1 train", "r1 heldout", "r1 left out"]


def test_a_base_model_that_was_taken_from_elsewhere_was_formed_by_nothing_here(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "world")
    world.prepare(["one"], ["one"])
    world.start(taken=True)
    ancestry = Ancestry(world.root)

    assert list(ancestry.items(ancestry.model("base"))) == []
    assert [item.kind for item in ancestry.items(ancestry.model("sft"))] == ["demonstration"]


def test_judgments_written_anew_and_never_committed_are_an_error(labelled: World) -> None:
    old = labelled.now["data/rounds/r1/preferences"][0]
    labelled.label("r1", START, ["bo"], "second")
    labelled.validate("r1", START)
    ancestry = Ancestry(labelled.root)

    with pytest.raises(RecordError, match=f"data/rounds/r1/preferences with md5 {old}"):
        list(ancestry.items(ancestry.model("r1")))


def test_a_file_that_is_neither_here_nor_cached_is_named_with_the_remedy(labelled: World) -> None:
    known = labelled.now["data/rounds/r1/judgments.jsonl"][0]
    object_path(labelled.root, known).unlink()
    ancestry = Ancestry(labelled.root)

    with pytest.raises(ContentError, match=rf"judgments.jsonl with md5 {known}.*dvc fetch"):
        list(ancestry.items(ancestry.model("r1")))


def test_a_file_that_is_only_checked_out_is_read_if_its_bytes_are_the_recorded_ones(
    labelled: World,
) -> None:
    known = labelled.now["data/rounds/r1/judgments.jsonl"][0]
    here = labelled.root / "data/rounds/r1/judgments.jsonl"
    here.parent.mkdir(parents=True)
    object_path(labelled.root, known).rename(here)
    ancestry = Ancestry(labelled.root)
    assert any(item.kind == "judgment" for item in ancestry.items(ancestry.model("r1")))

    here.write_text(here.read_text() + "\n")
    edited = Ancestry(labelled.root)
    with pytest.raises(ContentError):
        list(edited.items(edited.model("r1")))


def test_a_folder_that_is_only_checked_out_is_read_if_its_bytes_are_the_recorded_ones(
    labelled: World,
) -> None:
    """With other demonstrations in it, SFT would be called formed by what it never saw."""
    listing = object_path(labelled.root, labelled.now["data/prepared"][0])
    for one in json.loads(listing.read_text()):
        here = labelled.root / "data/prepared" / one["relpath"]
        here.parent.mkdir(parents=True, exist_ok=True)
        object_path(labelled.root, one["md5"]).rename(here)
    listing.unlink()

    def formed() -> set[tuple[str, str]]:
        ancestry = Ancestry(labelled.root)
        return {(item.kind, item.id) for item in ancestry.items(ancestry.model("sft"))}

    assert formed() == labelled.now["models/sft"][1]

    shown = labelled.root / "data/prepared/demonstrations.jsonl"
    shown.write_text('{"prompt_id": "x", "prompt": "another", "response": "re"}\n')
    with pytest.raises(ContentError, match=r"^data/prepared with md5 .*\.dir is neither in "):
        formed()


def test_a_model_of_another_branch_is_traced_through_rounds_that_are_not_here(
    labelled: World,
) -> None:
    here = labelled.commit()
    labelled.switch("other")
    labelled.round("r2", after("r1"), ["bo"], "second")
    labelled.round("r3", after("r2"), ["cy"], "third")
    labelled.commit()
    path = "models/rounds/r3/policy"
    known, formed = labelled.now[path]
    labelled.switch(here)

    ancestry = Ancestry(labelled.root)
    found = ancestry.items(ancestry.model(known))

    assert path not in ancestry.records.models()
    assert frozenset((item.kind, item.id) for item in found) == formed


def test_a_part_of_an_output_is_of_the_run_that_wrote_these_bytes(labelled: World) -> None:
    before = labelled.now["data/prepared"][0]
    part = labelled.now["data/prepared/preferences"][0]
    labelled.commit()
    labelled.prepare(["five", "six", "seven", "eight"], [])

    ran = Ancestry(labelled.root).records.writer("data/prepared/preferences", part)

    assert ran is not None
    assert ran.outs["data/prepared"] == before
    # Of other bytes below it nobody knows who wrote them; that is no file that people wrote.
    with pytest.raises(RecordError, match=r"^data/prepared/preferences with md5 0{32}\.dir: no "):
        Ancestry(labelled.root).records.writer("data/prepared/preferences", f"{'0' * 32}.dir")


def test_what_a_round_that_is_no_more_has_made_and_nobody_recorded_is_an_error(
    labelled: World,
) -> None:
    """Passed over, r2 would seem to be formed by its own judgments alone."""
    labelled.commit()
    labelled.round("r1", START, ["bo"], "second")
    labelled.round("r2", after("r1"), ["cy"], "third")
    for stage in [stage for stage in labelled.stages if stage.endswith("@r1")]:
        del labelled.stages[stage]
    labelled.measure("r2", {"metrics.json": "{}"})
    ancestry = Ancestry(labelled.root)

    with pytest.raises(RecordError, match=r"r1/.* with md5 .*: no dvc\.lock, of this revision or "):
        list(ancestry.items(ancestry.model("r2")))


def test_a_run_whose_branch_was_merged_without_its_dvc_lock_is_known(labelled: World) -> None:
    first = labelled.commit()
    labelled.switch("other")
    labelled.round("r1", START, ["bo"], "second")
    labelled.commit()
    known, formed = labelled.now["models/rounds/r1/policy"]
    labelled.switch(first)
    labelled.merge_nothing_of("other")

    ancestry = Ancestry(labelled.root)

    items = ancestry.items(ancestry.model(known))
    assert frozenset((item.kind, item.id) for item in items) == formed


def test_a_commit_with_a_damaged_dvc_lock_hides_no_other(labelled: World) -> None:
    known, formed = labelled.now["models/rounds/r1/policy"]
    labelled.commit()
    (labelled.root / "dvc.lock").write_text("<<<<<<< HEAD\nstages: {\n")
    labelled.commit()
    labelled.round("r1", START, ["bo"], "second")

    ancestry = Ancestry(labelled.root)

    items = ancestry.items(ancestry.model(known))
    assert frozenset((item.kind, item.id) for item in items) == formed


@pytest.mark.parametrize("name", ["r1", "models/rounds/r1/policy", "HASH"])
def test_a_policy_has_several_names(labelled: World, name: str) -> None:
    known = labelled.now["models/rounds/r1/policy"][0]

    found = Ancestry(labelled.root).model(known[:9] if name == "HASH" else name)

    assert found == Model("models/rounds/r1/policy", known)


def test_an_unknown_policy_is_refused_with_those_that_there_are(labelled: World) -> None:
    with pytest.raises(RecordError, match=r"r7: no model of this name; there are models/base, "):
        Ancestry(labelled.root).model("r7")
