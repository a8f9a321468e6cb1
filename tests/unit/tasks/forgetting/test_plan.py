"""What is found where, and what is said to follow, on a repository that only pretends to train."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from feedback.store.database import Database
from preferences.withdrawals import (
    WITHDRAWN_JUDGMENTS,
    WITHDRAWN_TEXTS,
    load_withdrawals,
    tombstone,
)
from tasks.forget import main
from tasks.forgetting.ledger import LOG, add
from tasks.forgetting.plan import Plan, make_plan
from tasks.forgetting.wanted import Wanted
from tests.traced_world import START, World, after, digest, object_path

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two rounds: ann and bob judged the first, bob alone the second."""
    world = World(tmp_path / "world")
    shutil.copy(ROOT / "params.yaml", world.root)
    world.prepare(["one", "two", "three Kim", "four"], ["one", "five Kim"])
    world.start()
    world.round("r1", START, ["ann", "bob"], "first")
    world.round("r2", after("r1"), ["bob"], "second")
    world.commit()
    monkeypatch.chdir(world.root)
    return world


def names(world: World, plan: Plan) -> set[str]:
    """The outputs whose cached files are to go."""
    known = {path: known for path, (known, _) in world.now.items()}
    del known["data/prepared/preferences"]  # a part of data/prepared
    found = set()
    for one in plan.files:
        md5 = one.path.parent.name + one.path.name
        for path, whole in known.items():
            if whole == md5:
                found.add(path)
            elif whole.endswith(".dir"):
                listing = json.loads(object_path(world.root, whole).read_text())
                found |= {f"{path}/{e['relpath']}" for e in listing if e["md5"] == md5}
    return found


def stages(world: World, plan: Plan) -> dict[str, tuple[str, ...]]:
    """Place -> what the next run makes anew there."""
    return {one.place.relative_to(world.root).as_posix(): one.stages for one in plan.again}


AFTER_LABEL = (
    "label@r1", "validate@r1", "reward@r1", "ppo@r1",
    "sample@r2", "label@r2", "validate@r2", "reward@r2", "ppo@r2",
)  # fmt: skip


def test_an_annotator_of_one_round_goes_with_the_preferences_that_came_of_it(
    world: World,
) -> None:
    plan = make_plan(world.root, Wanted("annotator", "ann"))

    assert names(world, plan) == {
        "data/rounds/r1/judgments.jsonl",
        "data/rounds/r1/preferences/train.jsonl",
        "data/rounds/r1/preferences/heldout.jsonl",
    }
    assert stages(world, plan) == {".": AFTER_LABEL}
    assert {model.path for model in plan.models} == {
        f"models/rounds/{key}/{name}" for key in ("r1", "r2") for name in ("reward", "policy")
    }
    assert {name for name, added in plan.tombstones.items() if added} == {WITHDRAWN_JUDGMENTS}


def test_models_of_other_branches_and_of_earlier_commits_are_named(world: World) -> None:
    here = world.commit_hash()
    replaced = world.now["models/rounds/r1/policy"][0]
    world.switch("other")
    world.round("r1", START, ["ann"], "elsewhere")
    world.commit()
    elsewhere = world.now["models/rounds/r1/policy"][0]
    world.switch(here)
    world.round("r1", START, ["bob"], "third")
    world.commit()

    plan = make_plan(world.root, Wanted("annotator", "ann"))

    assert {replaced, elsewhere} <= {model.digest for model in plan.models}
    assert world.now["models/rounds/r1/policy"][0] not in {m.digest for m in plan.models}


def test_a_prompt_goes_from_everything_after_prepare(world: World) -> None:
    plan = make_plan(world.root, Wanted("prompt", digest("two")))

    (again,) = stages(world, plan).values()
    assert again[:3] == ("prepare", "base", "sft")
    assert len(again) == 3 + 5 * 2
    assert {"data/prepared/prompts/train.jsonl", "data/rounds/r1/comparisons.jsonl",
            "data/rounds/r2/judgments.jsonl"} <= names(world, plan)  # fmt: skip
    assert "data/prepared/demonstrations.jsonl" not in names(world, plan)
    assert {name for name, added in plan.tombstones.items() if added} == {WITHDRAWN_TEXTS}
    assert {model.path for model in plan.models} == set(world.now) & {
        f"models/rounds/{key}/{name}" for key in ("r1", "r2") for name in ("reward", "policy")
    }


def test_a_pattern_finds_demonstrations_too_and_then_sft_contains_it(world: World) -> None:
    plan = make_plan(world.root, Wanted("matching", r"\bKim\b"))

    assert "data/prepared/demonstrations.jsonl" in names(world, plan)
    assert "models/sft" in {model.path for model in plan.models}
    held = load_of(plan)
    assert held("text", "three Kim")
    assert held("text", "re five Kim")
    assert not held("text", "one")


def workspace(world: World, name: str, commit: str) -> Path:
    """A workspace with the dvc.lock of a commit, as a run has it."""
    folder = world.root / ".work" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "worktree", "add", "-q", "--detach", str(folder), commit]
    subprocess.run(command, cwd=world.root, check=True)
    for file in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / file, folder)
    (folder / ".dvc").mkdir()
    cache = world.root / ".dvc/cache"
    (folder / ".dvc/config.local").write_text(f"[cache]\n    dir = {cache}\n")
    return folder


def test_the_stages_are_named_for_each_run_and_variant_and_not_for_one_without_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with_both = world.commit_hash()
    del world.stages["sample@r2"], world.stages["label@r2"], world.stages["validate@r2"]
    del world.stages["reward@r2"], world.stages["ppo@r2"]
    world.round("r1", START, ["ann"], "alone")
    one_round = world.commit()
    world.round("r1", START, ["bob"], "without")
    without = world.commit()
    for name, commit in {
        "runs/both": with_both, "variants/one": one_round, "runs/without": without,
        "stages/elsewhere": with_both,
    }.items():  # fmt: skip
        workspace(world, name, commit)

    assert stages(world, make_plan(world.root, Wanted("annotator", "ann"))) == {
        ".work/runs/both": AFTER_LABEL, ".work/variants/one": AFTER_LABEL[:4]
    }  # fmt: skip
    assert main(["--annotator", "ann", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert f"the next run in .work/runs/both makes anew: {', '.join(AFTER_LABEL)}\n" in shown
    assert json.loads((world.root / LOG).read_text())["stages"] == {
        ".work/runs/both": list(AFTER_LABEL), ".work/variants/one": list(AFTER_LABEL[:4])
    }  # fmt: skip


def test_a_run_that_lacks_tombstones_of_before_looks_again(world: World) -> None:
    for name in ("label@r1", "label@r2"):
        dep = {"path": WITHDRAWN_JUDGMENTS, "md5": digest("none yet")}
        world.stages[name]["deps"].append(dep)
    world.round("r3", after("r2"), ["bob"], "third")
    folder = workspace(world, "runs/mine", world.commit())
    add(world.root, WITHDRAWN_JUDGMENTS, [tombstone("annotator", "cleo", "00")])
    add(world.root, WITHDRAWN_JUDGMENTS, [tombstone("annotator", "dan", "00")])

    plan = make_plan(world.root, Wanted("annotator", "dan"))

    assert not any(plan.tombstones.values())
    (again,) = plan.again
    assert (again.place, again.stages, again.looking) == (folder, (), ("label@r1", "label@r2"))


def test_what_an_earlier_withdrawal_made_stale_is_named_until_it_has_run(world: World) -> None:
    assert main(["--prompt", digest("two"), "--yes"]) == 0

    (again,) = stages(world, make_plan(world.root, Wanted("annotator", "ann"))).values()

    assert again[0] == "prepare"
    assert len(again) == 3 + 5 * 2


def test_an_own_file_that_only_a_run_names_is_searched(world: World) -> None:
    own = world.root / "mine.jsonl"
    own.write_text(json.dumps({"prompt": "Kim asks"}) + "\n" + json.dumps({"prompt": "x"}) + "\n")
    folder = workspace(world, "runs/mine", world.commit_hash())
    params = folder / "params.yaml"
    text = params.read_text()
    assert "\nprepare:\n" in text
    files = "  files: {prompts: mine.jsonl, demonstrations: mine.jsonl, corpus: mine.jsonl}\n"
    params.write_text(text.replace("\nprepare:\n", f"\nprepare:\n{files}"))
    (folder / "mine.jsonl").symlink_to(own)

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert own.read_text() == json.dumps({"prompt": "x"}) + "\n"
    assert (folder / "mine.jsonl").is_symlink()


def load_of(plan: Plan) -> Callable[[str, str], bool]:
    from preferences.withdrawals import Withdrawals

    found = Withdrawals(frozenset(one for added in plan.tombstones.values() for one in added))
    return found.holds


def everything(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def test_without_yes_nothing_is_changed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(world.root)

    assert main(["--annotator", "ann"]) == 0

    assert everything(world.root) == before
    assert "data/rounds/r1/judgments.jsonl: 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "traces"),
    [
        (["--annotator", "ann"], [b'"ann"']),
        (["--prompt", digest("two")], [b'"two"', digest("two").encode()]),
        (["--matching", "Kim"], [b"Kim"]),
        (["--source", "human"], [b'"human"']),
    ],
)
def test_afterwards_no_file_holds_it_neither_tombstones_nor_log(
    world: World, arguments: list[str], traces: list[bytes]
) -> None:
    assert any(traces[0] in content for content in everything(world.root).values())

    assert main([*arguments, "--yes"]) == 0

    left = everything(world.root)
    assert [path for path, content in left.items() if any(one in content for one in traces)] == []
    entry = json.loads((world.root / LOG).read_text())
    assert set(entry["tombstones"]) == {
        one.hash
        for name in (WITHDRAWN_TEXTS, WITHDRAWN_JUDGMENTS)
        for one in load_withdrawals(world.root / name).tombstones
    }
    assert entry["files"]["cache"] == len(entry["objects"]) > 0


def test_doing_it_twice_finds_nothing_and_adds_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--annotator", "ann", "--yes"]) == 0
    before = everything(world.root)
    capsys.readouterr()

    assert main(["--annotator", "ann", "--yes"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("Nothing here has it. Not here, and so not searched, are outputs that ")
    assert "the next run makes anew: label@r1, validate@r1, reward@r1, ppo@r1, sample@r2" in said
    assert everything(world.root) == before


def test_the_labelling_store_is_searched_and_emptied(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    from feedback.store import accounts

    store = world.root / ".work/feedback/feedback.db"
    database = Database(store)
    with database.writing() as connection:
        accounts.new_token(connection, "ann-louise")
        accounts.new_token(connection, "ann")
    database.close()

    assert main(["--annotator", "ann-louise", "--yes"]) == 0

    assert "labelling store .work/feedback/feedback.db: 1 annotators" in capsys.readouterr().out
    assert b"ann-louise" not in store.read_bytes()


def test_registered_versions_that_contain_it_are_marked(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.tracking.shipping import tracking_uri
    from tasks.tracking.store import connect

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    store = connect(tracking_uri(world.root))
    store.client.create_registered_model("rlhf-policy")
    for path in ("models/sft", "models/rounds/r2/policy"):
        run = store.client.create_run(store.experiment)
        tags = {"dvc.md5": world.now[path][0]}
        store.client.create_model_version("rlhf-policy", f"runs:/{run.info.run_id}/m", tags=tags)

    assert main(["--annotator", "ann", "--yes"]) == 0

    assert "Marked in MLflow: rlhf-policy version 2.\n" in capsys.readouterr().out
    versions = store.client.search_model_versions("name = 'rlhf-policy'")
    assert {v.version: "withdrawn" in v.tags for v in versions} == {1: False, 2: True}


def test_rows_of_own_files_go_and_a_judgment_becomes_nobodys_skip(world: World) -> None:
    own = world.root / "mine.jsonl"
    judgment = {"judgment_id": "1", "pair_id": "p", "round": "r1", "annotator_id": "ann",
                "kind": "human", "choice": "a", "revision": 1, "reason": "because"}  # fmt: skip
    other = {**judgment, "judgment_id": "2", "annotator_id": "bob"}
    own.write_text(json.dumps(judgment) + "\n" + json.dumps(other) + "\n")
    params = world.root / "params.yaml"
    text = params.read_text()
    assert "  annotators: rubric\n" in text
    params.write_text(
        text.replace("  annotators: rubric\n", "  annotators: file\n  file: mine.jsonl\n")
    )

    assert main(["--annotator", "ann", "--yes"]) == 0

    first, second = map(json.loads, own.read_text().splitlines())
    nobody = {"annotator_id": "withdrawn-1", "kind": "withdrawn", "choice": "skip"}
    assert first == {"judgment_id": "1", "pair_id": "p", "round": "r1", "revision": 1} | nobody
    assert second == other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--annotator", " "], "--annotator: expected something to forget"),
        (["--matching", "("], "--matching: not a regular expression"),
        (["--matching", "x*"], "--matching: 'x*' matches every text"),
    ],
)
def test_what_would_forget_everything_or_nothing_is_refused(
    world: World, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2

    assert capsys.readouterr().err.startswith(message)
