"""Tries the newest Prefect, MLflow, DVC and Great Expectations, and names the first that breaks.

    make newest                              # python -m benchmarks.newest, all four
    python -m benchmarks.newest mlflow       # one of them

Each is tried by itself: an environment of its own in .work/newest/PACKAGE sees what is installed
here, and has the newest release of that one package, with whatever that release needs, in front of
it. There a short set of tests runs. What is installed here stays as it is. Exit code 1 where one
breaks; the package index has to be reachable. .github/workflows/newest.yaml does it each week.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".work" / "newest"
PACKAGES = ("prefect", "mlflow", "dvc", "great-expectations")
TESTS = (
    "tests/unit/flows",
    "tests/unit/tasks/workspace/test_quick_dvc.py",
    "tests/integration/test_flow_stages.py",
    "tests/integration/test_prefect_server.py",
    "tests/integration/test_promotion.py",
    "tests/integration/test_serving.py",
    "tests/integration/test_stage_under_flow.py",
    "tests/integration/test_tracked_models.py",
    "tests/integration/test_tracking.py",
    "tests/integration/test_validate_stage.py",
)
"""Stages under DVC, the flow, Prefect's real server, MLflow's store, its registry and its server of
models, and the data gate."""


@dataclass(frozen=True)
class Tried:
    """How it went with one package."""

    package: str
    version: str
    problem: str = ""
    """Empty where all is well."""

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {self.problem or 'all tests pass'}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.newest",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}")
    packages = parser.parse_args(argv).packages or PACKAGES
    if unknown := [package for package in packages if package not in PACKAGES]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PACKAGES)}")
    broken = []
    for package in packages:
        found = newest(package)
        if found is None:
            print(f"{package}: the package index does not answer", flush=True)
            return 2
        if found == version(package):
            print(f"{package} {found}: is installed here already", flush=True)
            continue
        tried = attempt(package, found)
        print(tried, flush=True)
        broken += [tried] if tried.problem else []
    if broken:
        print(f"\nThe first that breaks: {broken[0]}")
    return 1 if broken else 0


def newest(package: str) -> str | None:
    """The newest release in the index; None where the index does not answer."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.match(rf"{re.escape(package)} \((.+)\)", done.stdout)
    return match[1] if match else None


def attempt(package: str, wanted: str) -> Tried:
    """Install one release in front of what is here, and run the tests with it."""
    python = environment(FOLDER / package)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               f"{package}=={wanted}"]  # fmt: skip
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return Tried(package, wanted, f"cannot be installed: {why_not(done.stderr)}")
    test = [str(python), "-m", "pytest", "-x", "--tb=short", *TESTS]
    done = subprocess.run(test, cwd=ROOT, capture_output=True, text=True, check=False)
    (FOLDER / f"{package}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return Tried(package, wanted, "" if done.returncode == 0 else first_failure(done.stdout))


def environment(folder: Path) -> Path:
    """The interpreter of a new environment that sees what is installed here behind its own."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "behind.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    bring_commands(Path(sysconfig.get_path("scripts")), python)
    return python


def bring_commands(scripts: Path, python: Path) -> None:
    """The commands that are installed here, for the new interpreter.

    MLflow starts its server of models by the name of a command, and would find the one that is
    installed here and sees nothing else.
    """
    for script in scripts.iterdir():
        target = python.parent / script.name
        if not script.is_file() or target.exists():
            continue
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            target.write_bytes(f"#!{python}\n".encode() + rest)
            target.chmod(0o755)


def why_not(said: str) -> str:
    """The line of pip's that names what is missing, as far as it says so."""
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.strip()]
    missing = [line for line in lines if line.startswith("Could not find a version")]
    return re.sub(r" \(from versions: .*\)", "", (missing or lines or ["pip says nothing"])[0])


def first_failure(said: str) -> str:
    """The first test that failed, and why in a line."""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return (failed or [*said.splitlines()[-1:], "pytest says nothing"])[0]


if __name__ == "__main__":
    sys.exit(main())
