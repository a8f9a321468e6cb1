"""Reads a YAML file of moderate size, counting what its aliases stand for.

Nine levels of nine aliases are 300 bytes of YAML and 400 million values, and an alias inside what
it stands for has no end. An alias counts as all that it stands for, merge keys (`<<`) included.
"""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from preferences.opening import open_regular

MAX_BYTES = 1 << 20
"""Largest file; params.yaml has a hundredth of that."""
MAX_VALUES = 100_000
"""Most keys and values, each alias replaced by what it stands for."""


class YAMLTooLargeError(ValueError):
    """A file that is too large, or would be with its aliases replaced."""


def load_yaml(path: Path) -> Any:
    """The content of a file as plain values, by YAML 1.2.

    Raises:
        OSError: it cannot be read, or is no regular file.
        UnicodeDecodeError: it is not UTF-8.
        YAMLError: it is not YAML.
        YAMLTooLargeError: it is too large, nested too deeply, or its aliases are.
    """
    with open_regular(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise YAMLTooLargeError(f"over {MAX_BYTES:,} bytes")
    text = data.decode("utf-8")
    try:
        count = _values(YAML(typ="safe", pure=True).compose(text), {})
        if count > MAX_VALUES:
            raise YAMLTooLargeError(
                f"{count:,} values with its aliases (*) replaced, expected at most {MAX_VALUES:,}"
            )
        return YAML(typ="safe", pure=True).load(text)
    except RecursionError:
        raise YAMLTooLargeError("nested too deeply") from None


def _values(node: Node | None, known: dict[int, int | None]) -> int:
    """The number of keys and values in a node; `known` has those of nodes already counted."""
    if not isinstance(node, CollectionNode):
        return 1
    if id(node) in known:
        count = known[id(node)]
        if count is None:
            raise YAMLTooLargeError("an alias (*) is inside what it stands for")
        return count
    known[id(node)] = None
    pairs = isinstance(node, MappingNode)
    children = [part for pair in node.value for part in pair] if pairs else node.value
    count = 1 + sum(_values(child, known) for child in children)
    known[id(node)] = count
    return count
