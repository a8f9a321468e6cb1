"""Counts modules and imports by room, in the working tree or in a commit, as `grimp` reads them.

    python -m benchmarks.import_graph              # the rooms as they are
    python -m benchmarks.import_graph 1cd83fd      # as they were in a commit

A room is a package: a top folder or a folder in it. An arrow is an import of one module by another;
those within a room are counted apart. A circle is a set of modules that reach each other by
imports.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("flows", "tasks", "rlhf", "preferences", "feedback", "data")
READ = """
import sys
sys.path.insert(0, sys.argv[1])
import grimp
graph = grimp.build_graph(*sys.argv[2:], cache_dir=None)
for module in sorted(graph.modules):
    print(module, *sorted(graph.find_modules_directly_imported_by(module)))
"""
"""Run in a process of its own, since it looks for the packages of another commit."""


def read_graph(root: Path) -> dict[str, set[str]]:
    """Module -> modules that it imports, packages included."""
    command = [sys.executable, "-c", READ, str(root), *FLOORS]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    rows = (line.split() for line in done.stdout.splitlines())
    return {module: set(imported) for module, *imported in rows}


def room_of(module: str, packages: Iterable[str]) -> str:
    """The package that a module is in; a package is in itself."""
    return module if module in packages else module.rpartition(".")[0]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other, in alphabetical order."""
    reached = {module: _reached(graph, module) for module in graph}
    found = {
        tuple(sorted({module, *(other for other in reached[module] if module in reached[other])}))
        for module in graph
        if module in reached[module]
    }
    return sorted(list(circle) for circle in found)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for module in graph[todo.pop()] - seen:
            seen.add(module)
            todo.append(module)
    return seen


def table(graph: Mapping[str, set[str]]) -> list[str]:
    """A Markdown table of the rooms, and the sums below it."""
    packages = {module.rpartition(".")[0] for module in graph} - {""} | set(FLOORS)
    modules = Counter(room_of(module, packages) for module in graph if module not in packages)
    arrows = Counter(
        (room_of(module, packages), room_of(imported, packages))
        for module, found in graph.items()
        for imported in found
    )
    lines = ["| room | modules | imports within it | from it | into it |", "|---|---|---|---|---|"]
    for room in sorted(packages):
        out = sum(count for (a, b), count in arrows.items() if a == room != b)
        into = sum(count for (a, b), count in arrows.items() if b == room != a)
        lines.append(f"| `{room}` | {modules[room]} | {arrows[room, room]} | {out} | {into} |")
    between = {pair: count for pair, count in arrows.items() if pair[0] != pair[1]}
    found = circles(graph)
    return [
        *lines,
        "",
        f"{sum(modules.values())} modules in {len(packages)} rooms; "
        f"{sum(between.values())} imports between {len(between)} pairs of rooms. "
        f"Circles of modules: {'; '.join(', '.join(one) for one in found) or 'none'}.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.import_graph", description=__doc__)
    parser.add_argument("commit", nargs="?", help="default: the working tree")
    commit = parser.parse_args().commit
    if commit is None:
        print("\n".join(table(read_graph(ROOT))))
        return 0
    command = ["git", "-C", str(ROOT), "archive", commit, *FLOORS]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(f"import_graph: {commit}: {done.stderr.decode().strip()}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        print("\n".join(table(read_graph(Path(folder)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
