"""The process in which a reward function of the user's own runs: one call, then it ends.

Not imported but run by `rlhf.reward_functions`, as `python reward_function_child.py FILE NAME`.
stdin: `{"prompts": [...], "responses": [...]}`, or nothing to only look for the function; stdout:
`{"scores": [...]}` or `{"problem": "..."}`. What the function prints goes to stderr.
"""

import ctypes
import importlib.util
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

LONGEST = 300
"""Most characters of what an exception says."""


def answer(file: Path, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The scores of a call, or what is wrong with it."""
    try:
        function = _load(file, name)
        if not asked:
            return {"scores": []}
        found = function(asked["prompts"], asked["responses"])
        # A generator runs its code only here.
        return _checked(found, len(asked["responses"]))
    except BaseException as error:  # A user's code may raise anything, SystemExit included.
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return {"problem": said[:LONGEST] + _place(error, file)}


def _load(file: Path, name: str) -> Callable[[list[Any], list[str]], Iterable[Any]]:
    # A workspace has a link, and of what lies beside the file only what git knows.
    real = file.resolve()
    sys.path.insert(0, str(real.parent))
    # Named here: what DVC links to has no ending.
    loader = SourceFileLoader(file.stem, str(real))
    spec = importlib.util.spec_from_file_location(file.stem, real, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise TypeError(f"expected a function called {name}, found {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _checked(found: Any, count: int) -> dict[str, Any]:
    if isinstance(found, str | bytes | dict) or not isinstance(found, Iterable):
        return {"problem": f"expected a list of {count} numbers, found {type(found).__name__}"}
    scores = []
    for number, value in enumerate(found):
        score = _number(value)
        if score is None:
            shown = repr(value)[:80]
            return {"problem": f"expected finite numbers, found {shown} for response {number}"}
        scores.append(score)
    if len(scores) != count:
        return {"problem": f"expected {count} numbers, one for each response, found {len(scores)}"}
    return {"scores": scores}


def _number(value: Any) -> float | None:
    """A number of Python, NumPy or torch; a text is none, even where it could be read as one."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return score if math.isfinite(score) else None


def _place(error: BaseException, file: Path) -> str:
    """The last line of the user's file that the error went through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    return f" ({file}, line {frames[-1].lineno})" if frames else ""


def main() -> None:
    """Answer the call on stdin."""
    # Ends with the stage that started it, however that ends.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.read() or "{}")
    json.dump(answer(Path(sys.argv[1]), sys.argv[2], asked), reply)
    reply.close()


if __name__ == "__main__":
    main()
