"""`tasks.forget` removes what it finds from files, caches, stores and registries, or refuses."""

import gzip
import json
from pathlib import Path

import pytest

from feedback.judgments import read_judgments
from feedback.store.database import Database
from preferences.withdrawals import WITHDRAWN_JUDGMENTS, WITHDRAWN_TEXTS, load_withdrawals
from tasks.forget import LEFT_TO_YOU, main
from tasks.forgetting.own_rows import OwnRowsError
from tasks.forgetting.places import not_searched
from tasks.forgetting.plan import make_plan
from tasks.forgetting.removal import carry_out
from tasks.forgetting.wanted import Wanted
from tasks.workspace.withdrawn import LOG
from tests.traced_world import World, digest
from tests.unit.tasks.forgetting.conftest import everything, workspace


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


@pytest.mark.parametrize("asked", ["Jos\u00e9", "Jose\u0301"])
def test_the_store_has_a_name_in_either_spelling_of_unicode(world: World, asked: str) -> None:
    from feedback.store import accounts

    store = world.root / ".work/feedback/feedback.db"
    database = Database(store)
    with database.writing() as connection:
        accounts.new_token(connection, "Jos\u00e9")
    database.close()

    assert main(["--annotator", asked, "--yes"]) == 0

    assert "Jos\u00e9".encode() not in store.read_bytes()


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
                "kind": "human", "choice": "a", "shown_order": "AB", "revision": 1,
                "reason": "because"}  # fmt: skip
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
    kept = {name: judgment[name] for name in ("judgment_id", "pair_id", "round", "revision")}
    assert first == {**kept, "shown_order": "AB"} | nobody
    assert second == other
    read = [(one.annotator_id, one.choice) for one in read_judgments(own)]
    assert read == [("withdrawn-1", "skip"), ("bob", "a")], "as the stage `label` reads the file"


def name_own(world: World, path: str) -> None:
    """Have params.yaml name a file as all data of `prepare`."""
    params = world.root / "params.yaml"
    text = params.read_text()
    assert "\nprepare:\n" in text
    files = f"  files: {{prompts: {path}, demonstrations: {path}, corpus: {path}}}\n"
    params.write_text(text.replace("\nprepare:\n", f"\nprepare:\n{files}"))


def test_a_byte_order_mark_hides_no_row_and_stays_as_all_other_bytes_do(world: World) -> None:
    own = world.root / "mine.jsonl"
    own.write_bytes(b'\xef\xbb\xbf{"prompt": "Kim asks"}\r\n{"prompt":  "x"}\r\n')
    name_own(world, own.name)

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert load_withdrawals(world.root / WITHDRAWN_TEXTS).holds("text", "Kim asks")
    assert own.read_bytes() == b'\xef\xbb\xbf{"prompt":  "x"}\r\n'


@pytest.mark.parametrize("content", ['{"prompt": "Kim asks"}\n{"pro', '[\n{"prompt": "Kim"}]\n'])
def test_an_own_file_that_is_not_json_lines_is_left_to_the_person(
    world: World, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    own = world.root / "mine.jsonl"
    own.write_text(content)
    name_own(world, own.name)

    assert main(["--matching", "Kim", "--yes"]) == LEFT_TO_YOU

    assert own.read_text() == content
    said = capsys.readouterr().out
    assert "for you to edit (not JSON Lines, pinned, or all of it): mine.jsonl\n" in said
    assert said.splitlines()[-1].startswith("Not done: own files are left to you (mine.jsonl).")


def test_nothing_is_changed_where_an_own_file_was_damaged_since_it_was_searched(
    world: World,
) -> None:
    own = world.root / "mine.jsonl"
    own.write_text('{"prompt": "Kim asks"}\n')
    name_own(world, own.name)
    plan = make_plan(world.root, Wanted("matching", "Kim"))
    own.write_text('{"prompt": "Kim asks"}\n{"pro')
    before = everything(world.root)

    with pytest.raises(OwnRowsError, match=r"mine\.jsonl, line 2: expected a JSON object"):
        carry_out(world.root, plan)

    assert everything(world.root) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mine.jsonl.gz", gzip.compress(b'{"prompt": "Kim asks"}\n')),
        ("mine.csv", "prompt\nKim fr\u00e4gt\n".encode("latin-1")),
        ("mine/part.parquet", b"PAR1\0"),
    ],
    ids=["packed", "not UTF-8", "binary, in a folder"],
)
def test_own_files_that_cannot_be_searched_are_named_and_left_to_the_person(
    world: World, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    own = world.root / name
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(content)
    name_own(world, Path(name).parts[0])
    line = f"for you to search (packed, binary, a link, or not UTF-8): {name}"

    assert main(["--matching", "Kim", "--yes"]) == LEFT_TO_YOU

    said = capsys.readouterr().out.splitlines()
    assert said.count(line) == 1
    assert said[-1].startswith(f"Not done: own files are left to you ({name}).")
    assert own.read_bytes() == content

    assert main(["--matching", "nobody of this name"]) == LEFT_TO_YOU

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Nothing that can be searched here has it.")
    assert said[1] == line


def test_a_link_in_a_folder_is_left_to_the_person_and_weights_are_not(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.jsonl").write_text("{}\n")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to("../elsewhere.jsonl")
    (folder / "model.safetensors").write_bytes(b"\0")
    (folder / "text.jsonl").write_text("{}\n")
    assert not_searched(tmp_path, ["mine", "elsewhere.jsonl", "org/on-the-hub"]) == [
        folder / "link.jsonl"
    ]


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
