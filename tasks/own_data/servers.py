"""Where stages find servers that sample their responses, and whether this machine has one."""

import os
import shlex
import shutil
from collections.abc import Iterator

from tasks.params.loading import Params

URL_VARIABLE = "RLHF_GENERATION_URL"
"""Environment variable: addresses of running servers, with spaces between them."""
COMMAND_VARIABLE = "RLHF_GENERATION_COMMAND"
"""Environment variable: what a stage starts where no address is given."""
COMMAND = "vllm serve"


def server_command() -> list[str] | None:
    """What starts a server, None where there is no such command."""
    command = shlex.split(os.environ.get(COMMAND_VARIABLE, COMMAND))
    return command if command and shutil.which(command[0]) else None


def server_notes(params: Params) -> Iterator[str]:
    """What ends a stage that samples, hours later, unless it runs where there is a server."""
    wanted = {
        "run.generation": params.run.generation == "server" and not os.environ.get(URL_VARIABLE),
        "ppo.rollouts": params.ppo.rollouts == "server",
    }
    if (keys := [key for key, missing in wanted.items() if missing]) and server_command() is None:
        also = f", or name a running one ({URL_VARIABLE})" if wanted["run.generation"] else ""
        yield (
            f"{' and '.join(keys)}: server, but there is no command "
            f"{os.environ.get(COMMAND_VARIABLE, COMMAND)!r} here to start one; install it, or name "
            f"another ({COMMAND_VARIABLE}){also}. Stages that sample here end without one"
        )
