"""`python -m feedback`: the labelling page and its commands.

serve     opens the page            token    gives a person access
publish   puts pairs on the page    status   shows the progress of rounds
export    writes judgments          import   reads judgments
backup    copies the store          restore  makes a store from a copy
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from feedback import commands
from feedback.annotators import MissingJudgmentsError
from feedback.store.accounts import RIGHTS, TOKEN_DAYS
from feedback.store.database import shown, usual_store
from preferences.records import JudgmentError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 (done), 2 (bad input) or 5 (the round waits for people)."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    given = _parser().parse_args(arguments)
    try:
        given.store = given.store or usual_store()
        return int(given.run(given))
    except MissingJudgmentsError as error:
        sys.stderr.write(f"{error}\n")
        return 5
    except (JudgmentError, ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except SQLAlchemyError as error:
        sys.stderr.write(f"store {shown(given.store)}: {str(error).splitlines()[0]}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m feedback",
        description="The labelling page, where people compare two responses, blind.",
    )
    commands_of = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands_of)
    _add_publish(commands_of)
    _add_token(commands_of)
    _add_status(commands_of)
    _add_exchange(commands_of)
    _add_backup(commands_of)
    return parser


def _add(
    to: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help_text: str
) -> argparse.ArgumentParser:
    command = to.add_parser(name, help=help_text, description=help_text)
    command.add_argument(
        "--store",
        help="database of the page: a file or a SQLAlchemy URL (default: $RLHF_FEEDBACK_STORE, "
        "else label.store of params.yaml)",
    )
    return command


def _add_serve(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "serve", "Open the labelling page on this machine.")
    command.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    command.add_argument("--port", type=int, default=8765, help="port (default: %(default)s)")
    command.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name under which the page may be opened",
    )
    command.add_argument(
        "--behind-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address or network of the proxy that adds TLS; nobody else is served then",
    )
    command.add_argument(
        "--sign-in-header",
        metavar="NAME",
        help="header in which the proxy names whom it has signed in, such as X-Forwarded-User",
    )
    command.add_argument("--guidelines", type=Path, help="Markdown file shown beside the pairs")
    command.add_argument(
        "--lease-minutes",
        type=float,
        default=10,
        help="time allowed per pair (default: %(default)s)",
    )
    command.add_argument(
        "--gold-rate", type=float, default=0.1, help="share of gold items (default: %(default)s)"
    )
    command.add_argument(
        "--repeat-rate", type=float, default=0.04, help="share of repeats (default: %(default)s)"
    )
    command.add_argument(
        "--prefect-url",
        default=os.environ.get("PREFECT_API_URL"),
        help="Prefect API to notify when a round is complete (default: $PREFECT_API_URL, else that "
        "of `make ui` if it runs in this folder)",
    )
    command.set_defaults(run=commands.serve)


def _add_publish(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "publish", "Put the pairs of a round, or gold items, on the page.")
    command.add_argument("--round", dest="round_key", help="round, for example r1")
    command.add_argument(
        "--comparisons",
        type=Path,
        help="pairs of the round (default: data/rounds/ROUND/comparisons.jsonl)",
    )
    command.add_argument(
        "--overlap", type=int, help="people per pair (default: as many as before, at first 1)"
    )
    command.add_argument(
        "--gold",
        type=Path,
        help='gold items instead: JSON Lines of {"prompt", "response_a", "response_b", "gold"}',
    )
    command.set_defaults(run=commands.publish)


def _add_token(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "token", "Print a new token for a person; it replaces the previous one.")
    command.add_argument("name", help="name of the annotator")
    roles = command.add_mutually_exclusive_group()
    for option, role, text in (
        ("--lead", "lead", "also give access to the overview, which is kept at the next token"),
        ("--no-lead", "annotator", "give access to the overview no longer"),
    ):
        roles.add_argument(option, dest="role", action="store_const", const=role, help=text)
    command.add_argument(
        "--rights",
        metavar="LIST",
        help=f"a lead with these rights only, of {','.join(RIGHTS)} (default of --lead: all)",
    )
    command.add_argument(
        "--days",
        type=float,
        default=TOKEN_DAYS,
        help="how long the token lasts; 0: for ever (default: %(default)s)",
    )
    command.add_argument("--resume", action="store_true", help="resume a paused annotator instead")
    command.set_defaults(run=_token)


def _token(given: argparse.Namespace) -> int:
    if given.rights is not None and given.role == "annotator":
        raise ValueError("--no-lead takes the overview away, and --rights gives it; leave one out")
    return commands.token(given)


def _add_status(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "status", "Show the progress of rounds and which annotators need attention.")
    command.add_argument(
        "--round", dest="round_key", help="only this round; exits 5 while it is incomplete"
    )
    command.set_defaults(run=commands.status)


def _add_exchange(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "export", "Export the judgments of a round.")
    command.add_argument("--round", dest="round_key", required=True, help="round, for example r1")
    command.add_argument(
        "--format",
        dest="form",
        choices=("judgments", "trl", "label-studio", "csv"),
        default="judgments",
        help="default: %(default)s",
    )
    command.add_argument("--out", type=Path, required=True, help="file to write")
    command.set_defaults(run=commands.export)
    command = _add(to, "import", "Import judgments made elsewhere.")
    command.add_argument("file", type=Path, help="file to read")
    command.add_argument("--round", dest="round_key", required=True, help="round, for example r1")
    command.add_argument(
        "--format",
        dest="form",
        choices=("judgments", "trl", "label-studio"),
        default="judgments",
        help="default: %(default)s",
    )
    command.set_defaults(run=commands.take_in)


def _add_backup(to: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _add(to, "backup", "Copy the store to a new file, while the page may be open.")
    command.add_argument("file", type=Path, help="file to write; must not exist")
    command.set_defaults(run=commands.back_up)
    command = _add(to, "restore", "Make a store from a backup; it must not exist yet.")
    command.add_argument("file", type=Path, help="backup to read")
    command.set_defaults(run=commands.restore)


if __name__ == "__main__":
    sys.exit(main())
