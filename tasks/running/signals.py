"""What asks a stage to end: it leaves at once, or, while it trains, at the next step."""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ParamSpec

from tasks.running.outcome import EXIT_CODES, Status
from tasks.running.saying import say, say_in_a_handler
from tasks.workspace.processes import hear_of_the_parents_death

PATIENCE_SECONDS = 8
"""How long a training step may continue after a SIGTERM, whose sender kills what does not end. A
longer step is abandoned, and the next run resumes from the newest checkpoint. After a Ctrl-C a step
takes as long as it needs: whoever pressed it can see that and press it again."""

DEATH_OF_ANOTHER = signal.SIGUSR2
"""What our own launcher sends where another of a stage's processes has died.

Not SIGUSR1: that is how Slurm's (deploy/slurm/launch.sh) asks them to end.
"""

FROM_OUTSIDE = (signal.SIGTERM, signal.SIGHUP, DEATH_OF_ANOTHER)
"""From launchers, or a terminal that was closed: they may come several times for one cause. Once a
stage ends, these would only interrupt what is left to be written."""

LOST = "another of the stage's processes has ended; run it again to resume"

LAUNCHED_BY = "RLHF_LAUNCHED_BY"
"""Tells each of a stage's several processes the number of the launcher that is its parent."""

INTERRUPTED = "interrupted; run it again to resume"

WAITING = (
    "will end after the current step and write a checkpoint; a second Ctrl-C ends it at once and "
    "loses its work since the newest checkpoint\n"
)


P = ParamSpec("P")


def interruptible(run: Callable[P, int]) -> Callable[P, int]:
    """A stage that a Ctrl-C ends in one line also where no end is recorded: it starts, or waits.

    One of several processes leaves the line to whoever has started them.
    """

    @functools.wraps(run)
    def said(*arguments: P.args, **named: P.kwargs) -> int:
        try:
            if signal.getsignal(signal.SIGINT) is _end_import:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return run(*arguments, **named)
        except KeyboardInterrupt:
            _say_interrupted(os.environ.get("DVC_STAGE") or named.get("name") or arguments[0])
            return EXIT_CODES["interrupted"]

    return said


def interruptible_import() -> None:
    """Until `interruptible` takes over, a Ctrl-C ends the process in one line, too.

    A KeyboardInterrupt would end it in a traceback of whichever library is being imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_import)


def _end_import(_number: int, _frame: FrameType | None) -> None:
    _say_interrupted(os.environ.get("DVC_STAGE"))
    os._exit(EXIT_CODES["interrupted"])


def _say_interrupted(stage: object) -> None:
    if "RANK" not in os.environ:
        say_in_a_handler(f"{stage}: {INTERRUPTED}\n")


class Signals:
    """Turns the signals that ask a stage to end into `KeyboardInterrupt`, now or a little later."""

    def __init__(self, name: str = "the stage") -> None:
        """Installs no handler yet; a Ctrl-C reports `name` as ending later."""
        self._name = name
        self.asked = False
        """A signal has arrived; work inside `patient` should end soon."""
        self._lost = False
        self._patient = False
        self._alarmed = False
        self._ending = False
        """Something has set the end in motion, and a SIGTERM would only interrupt that."""

    @property
    def end(self) -> tuple[Status, str]:
        """How a stage ends that was interrupted, and what people are told."""
        return ("failed", LOST) if self._lost else ("interrupted", INTERRUPTED)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle what asks a stage to end; Ctrl-C and SIGHUP stay ignored where they were (nohup).

        An interrupt leaves `FROM_OUTSIDE` ignored, for the end is recorded next, and so does an
        error, at which a launcher may end all processes. `outer_signals_restored` undoes it.
        """
        numbers = [signal.SIGTERM, signal.SIGALRM]
        if LAUNCHED_BY in os.environ:
            numbers.append(DEATH_OF_ANOTHER)
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                numbers.append(number)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        except BaseException:
            before |= dict.fromkeys(FROM_OUTSIDE, signal.SIG_IGN)
            raise
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside, a first signal only sets `asked`; a second Ctrl-C or the alarm interrupts.

        DEATH_OF_ANOTHER does nothing: the next exchange with the others fails, and says so.
        A second SIGTERM or SIGHUP does not: DVC, its driver, the kernel and `tasks.running.forked`
        may each send one for one cause.
        """
        self._patient = True
        try:
            yield
        except (Exception, KeyboardInterrupt):
            self._ending = True
            raise
        finally:
            self._patient = False

    def step_has_ended(self) -> None:
        """Leave time for the checkpoint: only a step may be abandoned for being long."""
        self._alarmed = True
        signal.alarm(0)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == DEATH_OF_ANOTHER and self._patient:
            return
        if number in FROM_OUTSIDE and self._ending:
            return
        self._lost = number == DEATH_OF_ANOTHER
        again = self.asked and number == signal.SIGINT
        if not self._patient or again or number == signal.SIGALRM:
            self._ending = True
            raise KeyboardInterrupt
        self.asked = True
        if number == signal.SIGINT:
            say_in_a_handler(f"{self._name} {WAITING}")
        elif not self._alarmed:
            self._alarmed = True
            signal.alarm(PATIENCE_SECONDS)


@contextmanager
def outer_signals_restored() -> Iterator[None]:
    """Afterwards `FROM_OUTSIDE` does what it did before, whatever was interrupted inside."""
    before = {number: signal.getsignal(number) for number in FROM_OUTSIDE}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """Get SIGTERM when the parent dies, so that no stage lives on unattended (Linux).

    Raises:
        SystemExit: DVC, or the launcher of several processes, died before we could ask for that.
    """
    if sys.platform != "linux":
        return
    hear_of_the_parents_death()
    if os.environ.get(LAUNCHED_BY, str(os.getppid())) != str(os.getppid()):
        died = "the launcher of its processes"
    elif os.environ.get("DVC_STAGE") and _left_to_init():
        died = "dvc"
    else:
        return
    say(f"{died} died while this stage was starting, so the stage ends too\n")
    raise SystemExit(EXIT_CODES["interrupted"])


def _left_to_init() -> bool:
    """Whether our parent is init, or systemd in its place, and not the dvc that started us."""
    parent = os.getppid()
    try:
        command = Path(f"/proc/{parent}/cmdline").read_bytes()
        name = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:  # It died just now: SIGTERM is on its way.
        return False
    return (parent == 1 or name == "systemd") and b"dvc" not in command
