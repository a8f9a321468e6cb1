"""Writes `docs/params.md`: every key of params.yaml with type, default and meaning.

    python -m tasks.params.page > docs/params.md

The texts are the docstrings of the fields, so the page cannot disagree with the code.
"""

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import annotated_types

from tasks.params.loading import Params, RoundParams
from tasks.params.rules import NAMED_ALONE

COLLECTIONS = {dict: "mapping", Mapping: "mapping", list: "list of texts"}

SIGNS = {
    annotated_types.Ge: ("≥", "ge"),
    annotated_types.Gt: (">", "gt"),
    annotated_types.Le: ("≤", "le"),
    annotated_types.Lt: ("<", "lt"),
}


def page() -> str:
    """The whole page as Markdown."""
    alone = [f"`{key}`" for key in NAMED_ALONE]
    lines = [
        "# Every key of `params.yaml`",
        "",
        "Written by `python -m tasks.params.page > docs/params.md` from the dataclasses that the",
        "code uses. A key that is not here is refused, with the nearest one that is.",
        "",
        "What the file leaves out has its default. It has to have every section, though `{}` will",
        f"do, and the keys that DVC follows by themselves: {', '.join(alone)}.",
    ]
    hints = typing.get_type_hints(Params, include_extras=True)
    for name, kind in hints.items():
        if name in ("rounds", "final"):
            continue
        lines += ["", f"## {name}", "", _summary(kind), "", *_table(kind, "")]
    lines += ["", "## rounds", "", _summary(RoundParams), "", *_table(RoundParams, "<key>.")]
    lines += ["", "`final` names the round whose policy `test` and `report` look at.", ""]
    return "\n".join(lines)


def _table(kind: type, prefix: str) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return [
        *rows,
        *(f"| `{key}` | {t} | {d} | {text} |" for key, t, d, text in _rows(kind, prefix)),
    ]


def _rows(kind: type, prefix: str, made: object = None) -> Iterator[tuple[str, str, str, str]]:
    texts = _field_texts(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        options = [hint, *typing.get_args(hint)]
        inner = next(filter(_is_section, options), None)
        text = texts.get(field.name, "").replace("|", "\\|")
        if inner is None:
            yield f"{prefix}{field.name}", _type(hint), _default(field, made), text
            continue
        assert isinstance(inner, type)
        name, optional = f"{prefix}{field.name}", type(None) in typing.get_args(hint)
        if typing.get_origin(hint) is tuple:
            yield name, "list of sections", "`[]`", text
            yield from _rows(inner, f"{name}[].")
            continue
        if text or optional:
            section = ("section or null", "`null`") if optional else ("section", "")
            yield name, *section, text
        yield from _rows(inner, f"{name}.", _made(field, made))


def _made(field: dataclasses.Field[Any], made: object) -> object:
    """The section as its owner makes it by default; None where it has to be given."""
    if made is not None:
        return getattr(made, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        kind, *limits = typing.get_args(hint)
        bounds = [
            f"{sign} {getattr(limit, attribute)}"
            for limit in limits
            for cls, (sign, attribute) in SIGNS.items()
            if isinstance(limit, cls)
        ]
        return " ".join([_type(kind), ", ".join(bounds)]).strip()
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and not typing.get_args(hint):
        return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(
            hint.__name__, hint.__name__
        )
    if typing.get_origin(hint) in COLLECTIONS:
        return COLLECTIONS[typing.get_origin(hint)]
    return " or ".join(_type(option) for option in typing.get_args(hint))


def _default(field: dataclasses.Field[Any], made: object) -> str:
    """The value in `made`, the section as its owner makes it by default, else the field's own."""
    value = field.default if made is None else getattr(made, field.name)
    if field.default_factory is not dataclasses.MISSING and made is None:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    return f"`{value}`"


def _summary(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _field_texts(kind: type) -> dict[str, str]:
    """The docstring below each field, read from the source."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and is_text:
            assert isinstance(field.target, ast.Name)
            texts[field.target.id] = " ".join(str(text.value.value).split())  # type: ignore[attr-defined]
    return texts


if __name__ == "__main__":
    sys.stdout.write(page())
