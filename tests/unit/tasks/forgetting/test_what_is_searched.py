"""What `tasks.forget` searches beside rows, and the files of models, which it leaves alone."""

import json
import tracemalloc
from pathlib import Path

import pytest

from feedback.store.database import Database
from preferences.records import Prompt, prompt_text
from tasks.forget import main
from tasks.forgetting.places import count
from tasks.forgetting.wanted import Wanted
from tasks.scoring.language_annotator import VERDICTS
from tasks.workspace.withdrawn import LOG
from tests.traced_world import World, digest, folder, lines, listing_text, object_path, put

MODEL = {
    "config.json": '{"model_type": "ann"}',
    "model.safetensors": "weights",
    "tokenizer.json": '{"model": {"merges": [["a", "nn"], ["ann", "a"]]}}',
}
"""As a folder in Hugging Face format: `ann` is a word of its tokenizer."""


def write(folder: Path, files: dict[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [folder / name for name in files]


def test_of_the_rows_of_a_large_file_only_those_that_have_it_are_held(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{number}", "scores": list(range(300, 330))} for number in range(10_000)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "Jane"}]))
    seen: list[object] = []
    tracemalloc.start()
    assert count(file, Wanted("matching", "Jane"), seen.append) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == [{"prompt": "Jane"}]
    assert peak < 3 * file.stat().st_size


@pytest.mark.parametrize("asked", [["--annotator", "ann"], ["--matching", "ann"]])
def test_the_files_of_a_model_stay_whatever_the_words_of_its_tokenizer(
    world: World, asked: list[str]
) -> None:
    hashes = {name: put(world.root, text) for name, text in MODEL.items()}
    object_path(world.root, folder(hashes)).parent.mkdir(exist_ok=True)
    object_path(world.root, folder(hashes)).write_text(listing_text(hashes))
    kept = world.root / ".work/mlflow/artifacts/models/m-1/artifacts"
    words = {"tokenizer.json": MODEL["tokenizer.json"]}
    files = [
        *(object_path(world.root, md5) for md5 in hashes.values()),
        *write(world.root / "models/rounds/r1/policy", MODEL),
        *write(kept, {"MLmodel": "name: ann\n"}),
        *write(kept / "model", MODEL),
        *write(kept / "components/tokenizer", words),
    ]
    (other,) = write(world.root / ".work/elsewhere", {"said.json": '{"annotator_id": "ann"}'})

    assert main([*asked, "--yes"]) == 0

    assert [path for path in files if not path.exists()] == []
    assert not other.exists()


def test_data_beside_the_weights_of_a_model_are_no_part_of_it(world: World) -> None:
    write(world.root / "mine", MODEL)
    (rows,) = write(world.root / "mine", {"rows.jsonl": '{"prompt": "Kim"}\n{"prompt": "x"}\n'})
    params = world.root / "params.yaml"
    base = "\nbase:\n  model: null"
    assert base in params.read_text()
    params.write_text(params.read_text().replace(base, "\nbase:\n  model: mine"))

    assert main(["--matching", "Kim", "--yes"]) == 0

    assert rows.read_text() == '{"prompt": "x"}\n'


def test_outputs_that_no_dvc_lock_names_are_searched(world: World) -> None:
    """A stage whose DVC was killed before it took note has left them."""
    judgment = '{"judgment_id": "1", "annotator_id": "ann"}\n'
    files = write(world.root / "data/rounds/r9", {"judgments.jsonl": judgment})
    files += write(world.root / "reports", {"run.html": "<td>ann</td>"})

    assert main(["--annotator", "ann", "--yes"]) == 0

    assert [path for path in files if path.exists()] == []


@pytest.mark.parametrize("name", ["outcome.json", "finish.json", "end.json", "ending.json"])
def test_the_message_of_an_end_goes_that_names_somebody_and_the_end_stays(
    world: World, name: str
) -> None:
    said = {"status": "blocked", "message": "annotators who agree less often is 1: ann. Report"}
    folder = world.root / ".work/validate@r1"
    (record,) = write(folder, {name: json.dumps(said)})
    (other,) = write(folder / "other", {name: json.dumps({"message": "annette asks"})})

    assert main(["--annotator", "ann", "--yes"]) == 0

    left = json.loads(record.read_text())
    assert left == {"status": "blocked", "message": left["message"]}
    assert left["message"] == f"what was said here was withdrawn, see {LOG}"
    assert other.exists()

    assert main(["--matching", "withdrawn, see", "--yes"]) == 0
    assert not record.exists()


def test_replies_of_language_models_that_judge_are_searched(world: World) -> None:
    """Models reason before their verdict, and quote what they judge."""
    reply = {"reply": "Kim Miller of Elm Street asks for a refund, so [[A]]", "verdict": 1}
    folder = world.root / VERDICTS / "0123456789abcdef"
    of_kim, other = write(folder, {"a.json": json.dumps(reply), "b.json": '{"reply": "[[B]]"}'})
    store = folder.parents[1] / "feedback.db"
    Database(store).close()

    assert main(["--matching", r"Kim\s+Miller", "--yes"]) == 0

    assert not of_kim.exists()
    assert other.exists()
    assert store.exists()


@pytest.mark.parametrize("content", ['["K\\u0069m asks"]', '[["x", "Kim"], {"a": 1}]'])
def test_a_json_list_of_texts_is_searched(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    assert count(path, Wanted("matching", "Kim"), lambda _: None) == 1
    assert count(path, Wanted("matching", "Lea"), lambda _: None) == 0


def test_weights_without_an_ending_are_not_read_as_a_whole(tmp_path: Path) -> None:
    """Objects of DVC's cache have no ending, and may be larger than memory."""
    path = tmp_path / "ab"
    with path.open("wb") as stream:
        stream.truncate(64 << 20)
    tracemalloc.start()
    assert count(path, Wanted("matching", "Kim"), lambda _: None) == 0
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("asked", ["Jos\u00e9", "Jose\u0301"])
def test_a_name_is_found_in_either_spelling_of_unicode(world: World, asked: str) -> None:
    """As the labelling page has them: one person, however a keyboard or a file system writes it."""
    row = {"judgment_id": "1", "pair_id": "p", "annotator_id": ""}
    (own, escaped), (page, other) = (
        write(world.root / ".work/own", {
            "composed.jsonl": json.dumps(row | {"annotator_id": "Jos\u00e9"}, ensure_ascii=False),
            "escaped.jsonl": json.dumps(row | {"annotator_id": "Jose\u0301"}),
        }),
        write(world.root / ".work/pages", {"a.log": "by Jose\u0301.\n", "b.log": "by Josefa.\n"}),
    )  # fmt: skip
    found = {path: count(path, Wanted("annotator", asked), print) for path in (own, escaped, page)}
    assert found == {own: 1, escaped: 1, page: 1}
    assert count(other, Wanted("annotator", asked), print) == 0


@pytest.mark.parametrize("pattern", ["^Kim", "Kim$", r"\AKim\Z", "(?<!.)Kim", "(?!.{4})Kim"])
def test_a_pattern_that_asks_where_a_text_begins_or_ends_is_found(
    tmp_path: Path, pattern: str
) -> None:
    """In the file other signs stand around the text."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Kim"}\n{"prompt": "Lea"}\n')
    assert count(path, Wanted("matching", pattern), lambda _: None) == 1


def test_replies_of_judges_that_quote_a_prompt_go_with_it(world: World) -> None:
    prompt = "Kim Miller of Elm Street: where is my order?"
    rows = world.root / "data/prepared/prompts/heldout.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(lines([{"prompt_id": digest(prompt), "prompt": prompt}]))
    reply = {"reply": f"The request is: {prompt} [[A]]", "verdict": 1}
    folder = world.root / VERDICTS / "0123456789abcdef"
    quoting, other = write(folder, {"a.json": json.dumps(reply), "b.json": '{"reply": "[[B]]"}'})

    assert main(["--prompt", digest(prompt), "--yes"]) == 0

    assert not quoting.exists()
    assert other.exists()


def test_a_name_is_looked_for_by_its_pattern_only_where_it_is(monkeypatch) -> None:
    """In 64 MB of a log that took 9 s."""
    monkeypatch.setattr(Wanted, "_token", property(lambda _: pytest.fail("slow")))
    assert not Wanted("annotator", "ann").page("step 1 &amp; \\n of 40")


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("Grüße, wo ist es?", '{"prompt": "Gr\\u00fc\\u00dfe, wo ist es?"}'),
        ("open 24/7?", '{"prompt": "open 24\\/7?"}'),
        (
            [{"role": "user", "content": "Who is Kim?"}],
            '{"prompt": [{"role": "user", "content": "Who is Kim?"}], "response": "x"}',
        ),
    ],
    ids=["escaped letters", "an escaped slash", "blanks between the messages"],
)
def test_a_prompt_is_found_in_a_file_without_ids_however_json_writes_it(
    tmp_path: Path, prompt: Prompt, written: str
) -> None:
    """As `json.dumps` writes it, and other programs do."""
    file = tmp_path / "own.jsonl"
    file.write_text(written + "\n" + '{"prompt": "another \\u00fc"}\n')
    known = {"texts": frozenset({prompt_text(prompt)}), "pairs": frozenset[str]()}

    assert count(file, Wanted("prompt", "50278d8977a13d46").known(**known), lambda _: None) == 1
