"""A process that has imported torch and transformers, and of which the stages of a run are forks.

Seven kinds of stages import them for two to three seconds each, fifteen times in the default run.
`tasks.workspace.fork_servers` starts this as a child of DVC, or of a flow run, with a socket at
which it listens; a stage's process asks here for a fork that runs it (`tasks.running.forked`).

- A fork keeps nothing of ours: it imports the code that is there when its stage begins.
- The folder, the interpreter, its packages and the variables that libraries read when they are
  loaded have to be the server's own; otherwise the process that asked runs the stage itself.
- Nobody is left behind: a fork gets SIGTERM when the server dies and SIGKILL when the process that
  asked is gone; the server ends once DVC, or the flow run, and the last fork have ended.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.running.forked import INTERRUPTED, MESSAGE_BYTES, STATUS, Request, interpreter, user_of
from tasks.workspace.processes import flush_c_streams, hear_of_the_parents_death, name_this_process

LIBRARIES = (
    "torch",
    "scipy.optimize",
    "pydantic",
    "safetensors.torch",
    "transformers.generation",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)
"""What the stages of the default run import, and not more: what is here takes memory in each."""

OURS = frozenset({"tasks", "rlhf", "preferences", "feedback", "data"})

ENDING = (signal.SIGTERM, signal.SIGINT)

GPUS = tuple(map(Path, ("/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")))
"""Where one of these exists, there may be a GPU: of NVIDIA, under WSL, of AMD. A library that asked
for it when imported would leave forks without it, so there is no server."""

_OF_SHELLS = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
_OF_NO_LIBRARY = ("DVC_", "RLHF_", "MLFLOW_", "PREFECT_")
"""How variables begin that none of the libraries reads. MLflow sets some in a flow's process, at a
time of its own."""

_ASKING_SECONDS = 10


@dataclass(frozen=True, slots=True)
class _Fork:
    """A stage that runs."""

    pid: int
    pidfd: int
    asker: socket.socket
    """Closed by the kernel with the process that asked; it sends nothing more."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a fork has to become."""

    request: Request
    streams: list[int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What decides which libraries a process has loaded."""

    folder: str
    interpreter: str
    variables: Mapping[str, str]
    packages_changed_ns: int
    """When something was last installed or removed."""

    @classmethod
    def by(cls, folder: str, interpreter: str, environment: Mapping[str, str]) -> "Loaded":
        """What a process would load that starts now."""
        variables = {
            name: value
            for name, value in environment.items()
            if name not in _OF_SHELLS and not name.startswith(_OF_NO_LIBRARY)
        }
        packages = Path(sysconfig.get_path("purelib"))
        return cls(folder, interpreter, variables, packages.stat().st_mtime_ns)


class Server:
    """Forks off a stage for each process that asks for one."""

    def __init__(self, listener: socket.socket, loaded: Loaded) -> None:
        """Standard input ends when whoever started us does."""
        self._listener = listener
        self._loaded = loaded
        self._forks: list[_Fork] = []
        self._wanted = True

    def serve(self) -> _Part | None:
        """In a fork, what it has to become; None in the server, once nobody needs it."""
        while self._wanted or self._forks:
            ready = self._wait()
            for fork in list(self._forks):
                if fork.pidfd not in ready and fork.asker.fileno() in ready:
                    signal.pidfd_send_signal(fork.pidfd, signal.SIGKILL)
                if fork.pidfd in ready or fork.asker.fileno() in ready:
                    self._report(fork)
            if self._wanted and 0 in ready:
                self._wanted = False
                self._listener.close()
            asked = self._wanted and self._listener.fileno() in ready
            if asked and (part := self._answer()) is not None:
                return part
        return None

    def _wait(self) -> set[int]:
        """The descriptors at which something has happened."""
        watched = [0, self._listener.fileno()] if self._wanted else []
        watched += [fork.pidfd for fork in self._forks]
        watched += [fork.asker.fileno() for fork in self._forks]
        poll = select.poll()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll()}

    def _report(self, fork: _Fork) -> None:
        _, status = os.waitpid(fork.pid, 0)
        self._forks.remove(fork)
        os.close(fork.pidfd)
        with fork.asker, contextlib.suppress(OSError):
            fork.asker.send(STATUS.pack(os.waitstatus_to_exitcode(status)))

    def _answer(self) -> _Part | None:
        """Fork if we can be what is asked for, else hang up; the part in the fork."""
        asker, _ = self._listener.accept()
        if (part := self._read(asker)) is None:
            asker.close()
            return None
        server = os.getpid()
        # What comes before the fork handles it waits; ignored, as it is here, it would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        if (pid := os.fork()) == 0:
            self._leave(asker, server)
            return part
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        for stream in part.streams:
            os.close(stream)
        fork = _Fork(pid, os.pidfd_open(pid), asker)
        self._forks.append(fork)
        with contextlib.suppress(OSError):  # Whoever asked is gone, which the next wait will show.
            socket.send_fds(asker, [STATUS.pack(os.getsid(0))], [fork.pidfd])
        return None

    def _read(self, asker: socket.socket) -> _Part | None:
        if user_of(asker) != os.geteuid():
            return None
        asker.settimeout(_ASKING_SECONDS)
        streams: list[int] = []
        try:
            message, streams, _, _ = socket.recv_fds(asker, MESSAGE_BYTES, 3)
            asked = Request(**json.loads(message))
            wanted = Loaded.by(asked.folder, asked.interpreter, asked.environment)
            if len(streams) == 3 and wanted == self._loaded:
                return _Part(asked, streams)
        except (OSError, ValueError, TypeError):  # Who asked is gone, or of another revision.
            pass
        for stream in streams:
            os.close(stream)
        return None

    def _leave(self, asker: socket.socket, server: int) -> None:
        """Keep nothing of the server in a fork, and end when it ends."""
        hear_of_the_parents_death()
        if os.getppid() != server:  # It died before we could ask.
            os._exit(INTERRUPTED)
        asker.close()
        self._listener.close()
        for fork in self._forks:
            os.close(fork.pidfd)
            fork.asker.close()


def become(part: _Part) -> None:
    """Run a stage in this fork as `python -m MODULE` does, to its end, and end as it does.

    To take the libraries apart, as Python does in the end, would copy their pages: 0.3 s a stage.
    """
    request = part.request
    for target, stream in enumerate(part.streams):
        os.dup2(stream, target)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    interrupted = signal.default_int_handler if request.interruptible else signal.SIG_IGN
    signal.signal(signal.SIGINT, interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    for name in [name for name in os.environ if name.startswith(_OF_NO_LIBRARY)]:
        del os.environ[name]
    os.environ.update(request.environment)
    name_this_process(request.module)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.argv = ["-m", *request.arguments]
    code = 0
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise  # Python says what it is, and ends as it always does.
        code = end.code
    # The rest of an end, as `multiprocessing` has it for its forks.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    flush_c_streams()
    os._exit(code)


def main() -> None:
    """Import, serve, and in each fork become a stage."""
    # Our starter's death or a SIGTERM ends us while we import; later it is the starter's end,
    # however it came about, and not a signal, which goes to stages, too: these have time for a
    # checkpoint then.
    hear_of_the_parents_death()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    if any(path.exists() for path in GPUS) or not _has_pidfds() or _is_unwanted():
        return
    # Before an import sets some for itself.
    loaded = Loaded.by(str(Path.cwd()), interpreter(), os.environ)
    for name in LIBRARIES:
        importlib.import_module(name)
    # A fork would copy the pages of what the collector looks at.
    gc.freeze()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if (part := Server(listener, loaded).serve()) is not None:
        become(part)
    os._exit(0)


def _is_unwanted() -> bool:
    """Whether our starter ended before we could ask the kernel to tell us."""
    return bool(select.select([0], [], [], 0)[0])


def _has_pidfds() -> bool:
    """Whether the kernel can name a process without its number, which another may get (5.3)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
