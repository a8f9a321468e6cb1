"""Each work of the speed benchmark in a process of its own, with a peak memory of its own.

Imports torch alone, so that the environment that has TRL can run it, too.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

ONE_WORK = "--work"
"""The option by which a command that measures several works does one, in its own process."""

Work = Callable[[], dict[str, Any]]


def each(works: Mapping[str, Work], device: str, arguments: list[str]) -> dict[str, dict[str, Any]]:
    """What each work gives: on a CPU in a child that shares our imports, on a GPU in a new process.

    A child cannot use a GPU whose driver its parent has loaded, and counting the GPUs, which some
    library may do when it is imported, loads it. So on a GPU this very command starts anew.
    """
    if ONE_WORK in arguments:
        name = arguments[arguments.index(ONE_WORK) + 1]
        return {name: works[name]()}
    if device == "cuda":
        return {name: anew(name) for name in works}
    return {name: apart(work) for name, work in works.items()}


def anew(name: str) -> dict[str, Any]:
    """What this command gives for one work."""
    command = [sys.executable, *sys.orig_argv[1:], ONE_WORK, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(1)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])[name]
    return found


def apart(work: Work) -> dict[str, Any]:
    """What the work gives in a child, for a CPU alone (`each`)."""
    assert not torch.cuda.is_initialized(), "a forked process cannot use the GPU of its parent"
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            with os.fdopen(theirs, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(1)
    found: dict[str, Any] = json.loads(said)
    return found
