"""Mutation run over the mathematics: which small change of the code does no test notice?

    python -m benchmarks.mutants [MODULE ...]        (make mutants)

Each mutant changes one place of one module: an operator, a comparison, a number, an argument order,
a call that is left out (`keep`, `detach`, `square` ...). It is written into a copy of the code and
the module's unit tests run against it in a forked process, which has torch loaded already. A mutant
that they let pass meets the published numbers and the properties too. What survives is listed with
its line and is a gap in the tests, or makes no difference and is explained in docs/correctness.md.
"""

import argparse
import ast
import copy
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import beartype  # noqa: F401
import hypothesis  # noqa: F401
import jaxtyping  # noqa: F401
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "ppo_losses": ("test_ppo_losses.py", "test_kl.py"),
    "preference_loss": ("test_preference_loss.py",),
    "language_model_loss": ("test_language_model_loss.py", "test_ppo_losses.py"),
    "advantages": ("test_advantages.py",),
    "kl": ("test_kl.py",),
    "logprobs": ("test_logprobs.py",),
    "masked": ("test_masked.py",),
}
SECOND = (
    "tests/golden/test_published_numbers.py",
    "tests/properties/test_identity_properties.py",
    "tests/properties/test_masking_properties.py",
)
COPIED = ("rlhf", "preferences", "tests")
"""What those tests need, beside `pyproject.toml`."""
SECONDS = 300
"""A mutant that runs longer than this never ends; that was noticed too."""

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SWAPPED = {"maximum": "minimum", "minimum": "maximum", "amax": "amin", "exp": "expm1"}
SWAPPED |= {"expm1": "exp", "max": "min", "min": "max"}
LEFT_OUT = {"detach", "square", "abs", "clamp", "exp", "rsqrt", "float", "to", "keep", "_excess"}
"""Calls replaced by what they are called on, or by their first argument."""

Mutant = tuple[int, str, str]


def mutants(source: str) -> Iterator[Mutant]:
    """Line, what was changed, and the changed source."""
    count = len(list(ast.walk(ast.parse(source))))
    for index in range(count):
        for variant in range(3):
            tree = ast.parse(source)
            node = list(ast.walk(tree))[index]
            before = _shown(node)
            change = _change(node, variant)
            if change is None:
                break
            tree = _replaced(tree, node, change)
            yield node.lineno, f"{before}  ->  {_shown(change)}", ast.unparse(tree)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.expr) else ""


def _change(node: ast.AST, variant: int) -> ast.expr | None:
    """The variant-th change of a node; None where there is no more."""
    return dict(enumerate(_changes(node))).get(variant)


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield _with(node, op=OPERATORS[type(operator)]())
        case ast.Compare(ops=[operator]) if type(operator) in OPERATORS:
            yield _with(node, ops=[OPERATORS[type(operator)]()])
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield _with(node, value=not value if isinstance(value, bool) else value + 1)
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.Call():
            yield from _changed_calls(node)


def _changed_calls(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else _shown(node.func)
    if name in SWAPPED and isinstance(node.func, ast.Attribute):
        yield _with(node, func=_with(node.func, attr=SWAPPED[name]))
    if name == "where":
        first, *branches = node.args
        yield _with(node, args=[first, *reversed(branches)])
    if name in LEFT_OUT:
        module = _shown(node.func).startswith(("torch.", "functional."))
        if isinstance(node.func, ast.Attribute) and not module:
            yield node.func.value
        elif node.args:
            yield node.args[0]


def _with(node: ast.expr, **fields: object) -> ast.expr:
    other = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _replaced(tree: ast.Module, old: ast.AST, new: ast.expr) -> ast.Module:
    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return ast.fix_missing_locations(Replace().visit(tree))


def passes(place: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass on the copy of the code at `place`."""
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(place)
        sys.path[:] = [str(place), *(p for p in sys.path if p not in ("", str(ROOT)))]
        signal.alarm(SECONDS)
        os._exit(int(pytest.main(["-x", "-q", "--no-header", *tests])))
    return os.waitpid(child, 0)[1] == 0


def run(module: str, place: Path) -> tuple[int, list[str]]:
    """Number of mutants, and a line for each survivor."""
    path = place / "rlhf" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    first = tuple(f"tests/unit/rlhf/{name}" for name in MODULES[module])
    if not (passes(place, first) and passes(place, SECOND)):
        raise SystemExit(f"{module}: its tests fail on the code as it is")
    count, survivors = 0, []
    for line, change, text in mutants(source):
        count += 1
        path.write_text(text, encoding="utf-8")
        if passes(place, first) and passes(place, SECOND):
            survivors.append(f"rlhf/{module}.py:{line}: {change}")
            print(survivors[-1], flush=True)
    path.write_text(source, encoding="utf-8")
    return count, survivors


def main() -> int:
    """Run the modules asked for; 1 where a mutant survived that docs/correctness.md leaves out."""
    parser = argparse.ArgumentParser(description="Which change of the mathematics goes unnoticed?")
    parser.add_argument("modules", nargs="*", choices=[*MODULES, []], help="default: all")
    chosen = parser.parse_args().modules or list(MODULES)
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    explained = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
    unexplained = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        ignore = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", place)
        for module in chosen:
            started = time.monotonic()
            count, survivors = run(module, place)
            rows = [f"| `{module}` | `{one.split(': ', 1)[1]}` |" for one in survivors]
            new = [row for row in rows if row not in explained]
            unexplained += len(new)
            seconds = time.monotonic() - started
            print(
                f"{module}: {count} mutants, {count - len(survivors)} killed, {len(survivors)} "
                f"survived ({len(new)} unexplained), {seconds:.0f} s",
                flush=True,
            )
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
