"""The project's own files, as paths from its root: packages, benchmarks, experiments, pages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("experiments", "flows", "tasks", "rlhf", "preferences", "feedback", "data")
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
)

BENCHMARKS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/**/*.py"))
EXPERIMENTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("experiments/**/*.py"))
PAGE_FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for ending in ("css", "html", "j2", "js")
    for path in (ROOT / package).rglob(f"*.{ending}")
)
"""Templates, styles and scripts of the labelling page, the report and the data docs."""
