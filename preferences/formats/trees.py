"""Open Assistant's conversations: trees of messages in which siblings are ranked.

Two forms are published: one tree per row (`prompt` with `replies`), and one message per row, which
names its parent. Where two or more answers to the same message have a rank (0 is best), they become
one row of ranked responses to the conversation before them.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from preferences.formats.unpaired import held
from preferences.reader import NumberedRow, Problems
from preferences.records import Row
from preferences.row_values import RowError
from preferences.schemas import shown

_ROLES = {"prompter": "user", "assistant": "assistant"}
_DEEPEST = 200
"""Messages in one conversation."""
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
Found = tuple[str, list[dict[str, str]], list[Row]]
"""Location, conversation, and the replies to it."""


def tree_rows(rows: Iterable[NumberedRow], problems: Problems) -> Iterator[NumberedRow]:
    """Rows of ranked responses; records what is no tree and no message."""
    messages: dict[str, NumberedRow] = {}
    for numbered in held(rows, problems.limits):
        row = numbered.row
        try:
            if isinstance(row.get("prompt"), dict):
                for found in list(_in_tree(numbered.where, row["prompt"])):
                    yield from _ranked(*found)
            elif not isinstance(row.get("message_id"), str):
                raise RowError('expected "prompt" with "replies", or "message_id"')
            elif row["message_id"] in messages:
                raise RowError('field "message_id": occurs twice')
            else:
                _message(row)
                _rank(row)
                messages[row["message_id"]] = numbered
        except RowError as error:
            problems.add_row(numbered.where, str(error))
    yield from _from_messages(messages, problems)


def _in_tree(where: str, root: Row) -> Iterator[Found]:
    waiting: list[tuple[Row, list[dict[str, str]]]] = [(root, [])]
    while waiting:
        node, before = waiting.pop()
        if not isinstance(node, dict):
            raise RowError("replies: expected objects")
        conversation = [*before, _message(node)]
        replies = node.get("replies") or []
        if not isinstance(replies, list) or len(conversation) > _DEEPEST:
            raise RowError("replies: expected a list of messages")
        yield where, conversation, replies
        waiting += [(reply, conversation) for reply in reversed(replies)]


def _from_messages(messages: dict[str, NumberedRow], problems: Problems) -> Iterator[NumberedRow]:
    replies: dict[str, list[NumberedRow]] = {}
    for numbered in messages.values():
        parent = numbered.row.get("parent_id")
        if isinstance(parent, str) and parent and _rank(numbered.row) is not None:
            replies.setdefault(parent, []).append(numbered)
    for parent, children in replies.items():
        where = children[0].where
        try:
            conversation = _conversation(messages, parent)
        except RowError as error:
            problems.add_row(where, str(error))
        else:
            yield from _ranked(where, conversation, [child.row for child in children])


def _conversation(messages: dict[str, NumberedRow], last: str) -> list[dict[str, str]]:
    """The messages from the root to the last one."""
    backwards: list[dict[str, str]] = []
    place: Any = last
    while place is not None:
        if place not in messages:
            raise RowError('field "parent_id": that message is not among the data')
        if len(backwards) == _DEEPEST:
            raise RowError(f'field "parent_id": over {_DEEPEST:,} messages before this one')
        backwards.append(_message(messages[place].row))
        place = messages[place].row.get("parent_id") or None
    return backwards[::-1]


def _ranked(
    where: str, conversation: list[dict[str, str]], replies: list[Row]
) -> Iterator[NumberedRow]:
    ranked = [reply for reply in replies if isinstance(reply, dict) and _rank(reply) is not None]
    if len(ranked) > 1:
        row = {
            "prompt": conversation,
            "responses": [_message(reply)["content"] for reply in ranked],
            "ranks": [_rank(reply) for reply in ranked],
        }
        yield NumberedRow(where, row)


def _rank(message: Row) -> Any:
    """The rank of an answer; None for other messages, and for those that were deleted."""
    answers = message.get("role") == "assistant" and not _deleted(message)
    rank = message.get("rank") if answers else None
    if not isinstance(rank, str):
        return rank
    # A cell of a table of text; an empty one is no rank.
    if rank and not _NUMBER.fullmatch(rank):
        raise RowError(f'field "rank": expected a number, got {shown(rank)}')
    return float(rank) if rank else None


def _deleted(message: Row) -> bool:
    """Whether the message was deleted; in a table of text, truth is text, too."""
    said = message.get("deleted")
    if isinstance(said, str) and said.lower() in ("true", "false", ""):
        return said.lower() == "true"
    if said is None or isinstance(said, bool):
        return bool(said)
    raise RowError(f'field "deleted": expected true or false, got {shown(said)}')


def _message(node: Row) -> dict[str, str]:
    role, text = node.get("role"), node.get("text")
    if not isinstance(role, str) or role not in _ROLES or not isinstance(text, str):
        raise RowError('expected messages with "text" and a "role" of prompter or assistant')
    return {"role": _ROLES[role], "content": text}
