"""A reward function of the user's own: prompts and responses in, one finite number each out.

`mine/check.py:score` is the function `score` of that file. It is called with two lists, the prompts
as they are in the data (text or messages) and the responses as text. Each call has a process of its
own, so nothing it does can hurt training or is remembered: the same call gives the same scores
after an interruption, too, as far as the function itself draws no lots. A rollout is cut into calls
of at most `CALL` responses in its order.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf import reward_function_child
from rlhf.params.rule_rewards import RewardMixParams

CALL = 256
"""Most responses of one call."""
CHILD = str(reward_function_child.__file__)


class RewardFunctionError(ValueError):
    """The user's reward function cannot be used; the message names file, function and reason."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function in a file, and how long a call may take."""

    name: str
    """File and function, such as `mine/check.py:score`."""
    seconds: float

    def check(self, folder: Path | None = None) -> None:
        """Import the file, relative to the folder, and look for the function.

        Raises:
            RewardFunctionError: either fails, or takes too long.
        """
        self._call({}, folder)

    def scores(self, prompts: Sequence[object], responses: Sequence[str]) -> list[float]:
        """One number for each response.

        Raises:
            RewardFunctionError: the function raises, takes too long or ends its process, or
                returns anything but a finite number for each response.
        """
        found: list[float] = []
        for start in range(0, len(responses), CALL):
            rows = slice(start, start + CALL)
            asked = {"prompts": list(prompts[rows]), "responses": list(responses[rows])}
            found += self._call(asked)
        return found

    def _call(self, asked: dict[str, Any], folder: Path | None = None) -> list[float]:
        file, _, function = self.name.rpartition(":")
        if not (folder or Path.cwd()).joinpath(file).is_file():
            raise RewardFunctionError(f"ppo.rewards.function: {self.name}: {file}: no such file")
        child = subprocess.Popen(
            [sys.executable, "-P", CHILD, file, function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": "0"},
            cwd=folder,
            start_new_session=True,
        )
        try:
            text, _ = child.communicate(json.dumps(asked).encode(), timeout=self.seconds)
        except subprocess.TimeoutExpired:
            raise self._error(
                f"no answer within {self.seconds:g} s (ppo.rewards.function_seconds) "
                f"for {len(asked.get('responses', []))} responses"
            ) from None
        finally:
            # Whatever it started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        try:
            reply = json.loads(text)
        except ValueError:
            raise self._error(f"its process ended with {child.returncode}") from None
        if "problem" in reply:
            raise self._error(reply["problem"])
        return [float(score) for score in reply["scores"]]

    def _error(self, found: str) -> RewardFunctionError:
        return RewardFunctionError(f"ppo.rewards.function: {self.name}: {found}")


def own_function(params: RewardMixParams) -> RewardFunction | None:
    """The user's own reward function, if there is one."""
    if params.function is None:
        return None
    return RewardFunction(params.function, params.function_seconds)
