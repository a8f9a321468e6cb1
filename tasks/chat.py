"""`python -m tasks.chat` (`make chat`): talk to a policy in the terminal, beside SFT if you like.

The policy is the one in production (`make ui` has the promotion): the folder here if it has the
same bytes, else DVC's cache or MLflow's own. Before the first promotion it is that of the last
round that has one. Each line is a message; /reset forgets what was said, /quit or Ctrl-D leaves,
Ctrl-C stops a response. A tokenizer without a chat template takes each line by itself, and so does
the embedded model, which knows single letters only.

Without a terminal, each line of the input gets one line of output: the response, or
`policy<tab>response` and `sft<tab>response`. Exit codes: 0, and 2 for bad input.
"""

import argparse
import io
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf.stopping import TrainingStopped
from tasks.chatting.policy import SFT, ChatError
from tasks.chatting.speakers import Loading, Speaker
from tasks.running.terminal import harmless


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    options = _options(argv)
    root = Path.cwd()
    if isinstance(sys.stdin, io.TextIOWrapper):
        # In some locales bytes that are no UTF-8 become what no tokenizer takes.
        sys.stdin.reconfigure(errors="replace")
    loading = Loading(root, options)
    try:
        if not _probably_there(root, options):
            loading.speakers()  # Says at once what is missing.
        if sys.stdin.isatty():
            _converse(loading)
        else:
            _answer_lines(loading)
    except (ValueError, ChatError, OSError, TrainingStopped) as error:
        # ParamsError, ModelFolderError, TokenizerError and the like are ValueErrors.
        sys.stderr.write(harmless(f"{error}\n"))
        return 2
    except (KeyboardInterrupt, EOFError):
        sys.stdout.write("\n")
    return 0


def _probably_there(root: Path, options: argparse.Namespace) -> bool:
    """Whether there are model folders for all speakers, by their names alone."""
    policies = [root / options.policy] if options.policy else root.glob("models/rounds/*/policy")
    wanted = [policies, [root / SFT]] if options.sft else [policies]
    return all(any((one / "config.json").is_file() for one in folders) for folders in wanted)


def _converse(loading: Loading) -> None:
    """Take messages from a terminal until /quit, Ctrl-D, or Ctrl-C at the prompt."""
    import readline  # noqa: F401, PLC0415 (line editing, for a terminal only)

    sys.stdout.write("/reset forgets what was said, /quit leaves. Ctrl-C stops a response.\n")
    introduced = False
    while True:
        line = input("\n> ").strip()
        if line == "/quit":
            return
        speakers = loading.speakers()
        if not introduced:
            sys.stdout.write("".join(f"{one.name}: {one.about}\n" for one in speakers))
            introduced = True
        if line == "/reset":
            for speaker in speakers:
                speaker.dialogue.reset()
        elif line:
            _show(speakers, line)


def _show(speakers: list[Speaker], line: str) -> None:
    """Write the responses as they come; Ctrl-C ends them."""
    try:
        for speaker in speakers:
            sys.stdout.write(f"\n{speaker.name}: ")
            for piece in _pieces(speaker, line):
                sys.stdout.write(piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
    except KeyboardInterrupt:
        sys.stdout.write(" (stopped)\n")


def _pieces(speaker: Speaker, line: str) -> Iterator[str]:
    from rlhf.dialogue import TooLongError, UnknownWordError  # noqa: PLC0415
    from rlhf.templates import TemplateError  # noqa: PLC0415

    try:
        yield from map(harmless, speaker.dialogue.respond(line))
    except (TooLongError, UnknownWordError, TemplateError) as error:
        yield harmless(f"({error})")


def _answer_lines(loading: Loading) -> None:
    """Answer each line of the input by one line for each speaker."""
    for raw in sys.stdin:
        line, speakers = raw.strip(), loading.speakers()
        if line == "/quit":
            return
        for speaker in speakers:
            if line == "/reset":
                speaker.dialogue.reset()
            elif line:
                name = f"{speaker.name}\t" if len(speakers) > 1 else ""
                said = " ".join("".join(_pieces(speaker, line)).split())
                sys.stdout.write(f"{name}{said}\n")
        sys.stdout.flush()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    def at_least(least: int, kind: type[int] | type[float]) -> Callable[[str], float]:
        def read(text: str) -> float:
            with suppress(ValueError):
                if least <= (value := kind(text)) < math.inf:
                    return value
            number = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"expected {number}, {least} or more, found {text}")

        return read

    parser = argparse.ArgumentParser(
        prog="python -m tasks.chat",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", metavar="FOLDER", type=Path, help="talk to this one")
    parser.add_argument("--sft", action="store_true", help=f"let {SFT} respond, too")
    parser.add_argument(
        "--temperature",
        type=at_least(0, float),
        help="0: likeliest tokens; default: ppo.sampling.temperature of params.yaml, else 0.9",
    )
    parser.add_argument("--max-new-tokens", type=at_least(1, int), default=256, help="default: 256")
    parser.add_argument("--seed", type=at_least(0, int), default=0, help="default: 0")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
