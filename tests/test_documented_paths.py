"""Links and paths in the documents lead somewhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "data/README.md", *(
    path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))
))  # fmt: skip
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"\.?[\w*-][\w.*@-]*(/(<\w+>|[\w*@-][\w.*@-]*))*/?")
FILE_NAME = re.compile(r".+\.(py|md|yaml|yml|toml|json|jsonl|lock|txt|html|j2|svg|css|js|csv|cfg)")
WRITTEN = (
    ".work/", ".dvc/", ".venv/", "data/prepared", "data/rounds", "metrics/", "models/", "reports/",
    "results/",
)  # fmt: skip
"""Where commands write; tests/integration/test_outputs.py and test_pipeline.py look there."""


def tracked() -> set[str]:
    """Files of the repository, and those that will be once they are added."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


FILES = tracked()
FOLDERS = {parent.as_posix() for file in FILES for parent in Path(file).parents}
CODE = "\n".join(
    (ROOT / file).read_text(encoding="utf-8")
    for file in sorted(FILES)
    if file.endswith((".py", ".yaml", ".toml", ".j2", "Makefile")) and not file.startswith("tests/")
    if (ROOT / file).is_file()
)


def looks_like_a_path(span: str) -> bool:
    return PATH.fullmatch(span) is not None and (
        "/" in span or FILE_NAME.fullmatch(span) is not None
    )


def leads_somewhere(span: str, page: str) -> bool:
    path = span.rstrip("/")
    if (span + "/").startswith(WRITTEN):
        return True
    near = (Path(page).parent / path).as_posix()
    # Text about a package names its modules and rooms without it; tests are named below tests/.
    if any(known in (path, near) or known.endswith(f"/{path}") for known in FILES | FOLDERS):
        return True
    # What the code names in a string: a file or folder that it writes, a metric, a deployment.
    parts = [part for part in path.split("/") if not part.startswith("<")]
    return not path.endswith(".py") and all(named_in_code(part) for part in parts)


def named_in_code(part: str) -> bool:
    return re.search(rf"""["'/`]{re.escape(part)}["'/`{{]""", CODE) is not None


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file_or_folder(page: str):
    links = [link.partition("#")[0] for link in LINK.findall(FENCE.sub("", read(page)))]
    relative = [link for link in links if link and not re.match(r"[a-z]+:", link)]

    assert [link for link in relative if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_path_in_backticks_exists_or_is_written_by_the_code(page: str):
    spans = [span for span in SPAN.findall(FENCE.sub("", read(page))) if looks_like_a_path(span)]

    assert [span for span in spans if not leads_somewhere(span, page)] == []


@pytest.mark.parametrize(
    ("span", "found"),
    [
        ("rlhf/ppo_losses.py", True),
        ("rlhf/no_such_losses.py", False),
        ("no_such_module.py", False),
        ("reports/index.html", True),
        ("nowhere/to/be/found/", False),
        ("no_such_report.md", False),
    ],
)
def test_a_wrong_path_is_found(span: str, found: bool):
    assert looks_like_a_path(span)
    assert leads_somewhere(span, "README.md") == found


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
