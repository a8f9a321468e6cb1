"""`tasks.forget` finds what a page writes in another way: HTML, Markdown, names in messages."""

import json
from pathlib import Path

import pytest
from markupsafe import escape

from preferences.records import compact_json
from preferences.report import escaped
from preferences.schemas import shown
from tasks.forget import main
from tasks.reporting.data import _as_text
from tasks.reporting.page import visible
from tests.traced_world import World, digest, lines, object_path, put


def pages(world: World, text: str, name: str = "report.html") -> list[Path]:
    """A page among the outputs, in DVC's cache, and in what waits for MLflow."""
    files = [
        world.root / "reports" / name,
        world.root / ".work/spool/report/1/outputs/0" / name,
    ]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [*files, object_path(world.root, put(world.root, text))]


@pytest.mark.parametrize("name", ["O'Brien", "R&D", "ann_b", "Jos\u00e9"])
def test_a_name_is_found_as_report_and_messages_write_it(world: World, name: str) -> None:
    sentence = f"annotators who agree with the others less often: {shown(name)}"
    found = pages(world, f"<tr><th>{escape(name)}</th><td>human</td></tr>")
    place = world.root / ".work/validate@r1"
    (place / "blocked").mkdir(parents=True)
    report, outcome = place / "blocked/report.md", place / "outcome.json"
    verdict = {"reasons": [sentence], "numbers": {"weak_annotators": {"n": 9, "names": [name]}}}
    found += pages(world, json.dumps(verdict, ensure_ascii=False), "verdict.json")
    report.write_text(f"# Preference data: BLOCKED\n\n- weak_annotators: {escaped(sentence)}\n")
    outcome.write_text(json.dumps({"status": "blocked", "message": sentence}))

    assert main(["--annotator", name, "--yes"]) == 0

    assert [path for path in (*found, report) if path.exists()] == []
    assert "was withdrawn" in json.loads(outcome.read_text())["message"]


@pytest.mark.parametrize(
    "prompt",
    [
        "I can't log in & out",
        "two lines\r\nof Windows",
        "long " * 500,
        "I can\x92t log in",
        [{"role": "user", "content": "Where's it?"}],
    ],
)
def test_a_prompt_is_found_as_the_report_shows_it(
    world: World, prompt: str | list[dict[str, str]]
) -> None:
    known = digest(prompt if isinstance(prompt, str) else compact_json(prompt))
    rows = world.root / "data/prepared/prompts/heldout.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(lines([{"prompt_id": known, "prompt": prompt}]))
    found = pages(world, f'<p class="prompt">{escape(visible(_as_text(prompt)))}</p>')

    assert main(["--prompt", known, "--yes"]) == 0

    assert [path for path in found if path.exists()] == []


def test_a_pattern_is_found_in_html(world: World) -> None:
    asked = escape("Kim O'Neill asks")
    found = pages(world, f"<p>{asked}</p>")

    assert main(["--matching", "O'Neill", "--yes"]) == 0

    assert [path for path in found if path.exists()] == []


def test_a_prompt_that_begins_as_the_forgotten_one_does_keeps_its_report(world: World) -> None:
    """As all do that begin with one long system prompt."""
    system = {"role": "system", "content": "Answer politely. " * 200}
    one, other = ([system, {"role": "user", "content": said}] for said in ("Mine?", "Another's?"))
    known = digest(compact_json(one))
    rows = world.root / "data/prepared/prompts/heldout.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text(lines([{"prompt_id": known, "prompt": one}]))
    found = pages(world, f"<p>{escape(visible(_as_text(other)))}</p>")

    assert main(["--prompt", known, "--yes"]) == 0

    assert [path for path in found if not path.exists()] == []
