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
import gc
import io
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.stopping import TrainingStopped
from tasks.running.terminal import harmless
from tasks.tracking.production import Question, UnknownError
from tasks.tracking.sent import DEFAULT_STORE
from tasks.tracking.spool import home

if TYPE_CHECKING:
    from rlhf.dialogue import Dialogue

SFT = Path("models") / "sft"


class ChatError(Exception):
    """There is nobody to talk to; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """One side that responds."""

    name: str
    about: str
    """The folder, and what it is."""
    dialogue: "Dialogue"


class Loading:
    """The models, loaded beside the first line that a person types."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        """Begin to load."""
        self._root = root
        self._options = options
        self._speakers: list[Speaker] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def speakers(self) -> list[Speaker]:
        """The speakers, as soon as they are loaded; raises what loading has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._speakers

    def _load(self) -> None:
        # Collecting garbage among what is imported would take a second of four.
        gc.disable()
        try:
            self._speakers = load_speakers(self._root, self._options)
        except BaseException as error:
            self._error = error
        finally:
            gc.freeze()
            gc.enable()


def load_speakers(root: Path, options: argparse.Namespace) -> list[Speaker]:
    """The policy, and SFT where it is asked for."""
    asked = None if options.policy else ask_production(root)
    # Seconds of imports, which a person who is typing does not wait for.
    import transformers  # noqa: PLC0415

    from rlhf.compute import choose_device  # noqa: PLC0415
    from rlhf.dialogue import Dialogue  # noqa: PLC0415
    from rlhf.models import load_policy, load_tokenizer  # noqa: PLC0415
    from rlhf.params.sampling import SamplingParams  # noqa: PLC0415
    from rlhf.special_ids import load_special_ids  # noqa: PLC0415

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    sampling = SamplingParams(max_new_tokens=options.max_new_tokens)
    temperature = ppo_temperature(root) if options.temperature is None else options.temperature
    if temperature == 0:
        sampling = replace(sampling, top_k=1)
    elif temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    device = choose_device("auto")
    folder, about = choose_policy(root, options.policy, asked)
    chosen = [("policy", folder, about)]
    if options.sft:
        chosen.append(("sft", root / SFT, SFT.as_posix()))
    speakers = []
    for name, path, text in chosen:
        tokenizer = load_tokenizer(path)
        lm = load_policy(path, device)
        tokens = load_special_ids(path, tokenizer)
        dialogue = Dialogue(lm, tokenizer, sampling, tokens=tokens, seed=options.seed)
        speakers.append(Speaker(name, text, dialogue))
    return speakers


def ppo_temperature(root: Path) -> float | None:
    """`ppo.sampling.temperature` of params.yaml; None where there is none."""
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    from tasks.params.yaml_files import load_yaml  # noqa: PLC0415 (without pydantic)

    try:
        found = load_yaml(root / "params.yaml")["ppo"]["sampling"]["temperature"]
    except (OSError, ValueError, YAMLError, KeyError, TypeError):
        return None  # Whoever needs more of it says what is wrong.
    return float(found) if isinstance(found, int | float) and found > 0 else None


def ask_production(root: Path) -> Question | None:
    """The question which policy is in production; None where nobody has promoted one here."""
    if os.environ.get("MLFLOW_TRACKING_URI") or (home(root) / DEFAULT_STORE).is_file():
        return Question(root)
    return None


def choose_policy(root: Path, named: Path | None, asked: Question | None) -> tuple[Path, str]:
    """The folder of the policy, and what it is.

    Args:
        root: of the repository.
        named: the policy of the command line.
        asked: the question which policy is in production.

    Raises:
        ChatError: there is none.
    """
    if named is not None:
        return root / named, named.as_posix()
    if asked is not None:
        try:
            production = asked.answer()
        except UnknownError as error:
            raise ChatError(
                f"{error}; or name a policy: make chat POLICY=models/rounds/r1/policy"
            ) from None
        if production is not None:
            folder, about = production
            shown = folder.relative_to(root) if folder.is_relative_to(root) else folder
            return folder, f"{shown.as_posix()} ({about})"
    last = last_policy(root)
    return root / last, last.as_posix()


def last_policy(root: Path) -> Path:
    """The policy of the last round in params.yaml that has one.

    Raises:
        ChatError: no round has.
    """
    from tasks.params.loading import read_yaml  # noqa: PLC0415 (pydantic: a third of a second)

    rounds = read_yaml(root / "params.yaml").get("rounds")
    paths = [Path("models/rounds") / str(key) / "policy" for key in rounds or ()]
    found = [path for path in paths if (root / path / "config.json").is_file()]
    if not found:
        sft = f"; or talk to SFT: make chat POLICY={SFT}" if (root / SFT).is_dir() else ""
        raise ChatError(f"no policy yet: `make repro` trains one{sft}")
    return found[-1]


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
    def at_least(least: float, kind: Any) -> Any:
        def read(text: str) -> Any:
            if not (value := kind(text)) >= least:
                raise argparse.ArgumentTypeError(f"expected {least} or more, found {text}")
            return value

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
