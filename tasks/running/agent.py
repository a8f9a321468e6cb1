"""`torch.distributed.run` that ends the others in time when one of its processes has died.

torch gives them thirty seconds: `--shutdown-timeout` and its variable hold where the launcher gets
a signal, not where a process dies (see pytorch/pytorch#192815). One that waits in a library, such
as NCCL's, for what the dead one will never send hears no SIGTERM, and would take all of them.
"""

import os
from signal import Signals

from torch.distributed import run
from torch.distributed.elastic import multiprocessing

SECONDS = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
"""From SIGTERM to SIGKILL."""


class Processes(multiprocessing.SubprocessContext):
    """torch's own, with the timeout that was asked for wherever torch asks for none."""

    def close(self, death_sig: Signals | None = None, timeout: int = SECONDS) -> None:
        """End those that still run."""
        super().close(death_sig, timeout)


if __name__ == "__main__":
    multiprocessing.SubprocessContext = Processes  # type: ignore[misc]
    run.main()
