"""The report's lineage graph, one column per round, and its table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tasks.reporting.charts import shortened, svg
from tasks.reporting.data import ModelNode, Source

COLUMN, BOX, LINE = 158.0, 128.0, 15.0
GAP, TOP = 26.0, 26.0
LONGEST = 18
"""Most characters of a name that fit a box or a column."""
SHOWN = 7
"""Digits of a hash in the graph; the table has more."""


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the graph."""

    x: float
    y: float
    lines: tuple[tuple[str, str], ...]
    """(name, hash) for each line."""
    style: str

    @property
    def height(self) -> float:
        """In pixels."""
        return 14.0 + 2 * LINE * len(self.lines)

    @property
    def middle(self) -> float:
        """Vertically."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class LineageRow:
    """One model in the table below the graph."""

    path: str
    weights: str
    known_as: tuple[str, ...]
    """DVC's hash of the folder, as recorded by the models made from it; two if they disagree."""
    inputs: tuple[Source, ...]


def lineage_rows(nodes: Sequence[ModelNode]) -> list[LineageRow]:
    """The models with their inputs and with the hash by which later models refer to them."""
    used: dict[str, set[str]] = {}
    for node in nodes:
        for source in node.inputs:
            used.setdefault(source.path, set()).add(source.digest)
    return [
        LineageRow(node.path, node.weights, tuple(sorted(used.get(node.path, ()))), node.inputs)
        for node in nodes
    ]


def lineage_drawing(nodes: Sequence[ModelNode], labels: Mapping[str, tuple[Source, int]]) -> Markup:
    """Labels, data, reward model and policy of each round, with lines from cause to effect."""
    columns = list(dict.fromkeys(node.column for node in nodes))
    data = {column: _data_of(nodes, column) for column in columns}
    tops = _row_tops(data)
    boxes: dict[str, Box] = {}
    for number, column in enumerate(columns):
        x = number * COLUMN + (COLUMN - BOX) / 2
        if column in labels:
            source, count = labels[column]
            line = (f"{count:,} labels", source.digest[:SHOWN])
            boxes[f"labels {column}"] = Box(x, tops[0], (line,), "labels")
        if data[column]:
            lines = tuple((_short(s.path), s.digest[:SHOWN]) for s in data[column])
            boxes[f"data {column}"] = Box(x, tops[1], lines, "data")
        for node in nodes:
            if node.column == column:
                row = 2 if node.kind == "reward" else 3
                name = "reward model" if node.kind == "reward" else "policy"
                line = (name, node.weights[:SHOWN])
                boxes[node.path] = Box(x, tops[row], (line,), node.kind)
    bottom = tops[3] + 44.0 + 40.0
    parts = [_title(number, column) for number, column in enumerate(columns)]
    parts += _edges(nodes, boxes)
    parts += [_box(box) for box in boxes.values()]
    return svg(COLUMN * len(columns), bottom, "What was made from what", parts, style="lineage")


def _data_of(nodes: Sequence[ModelNode], column: str) -> list[Source]:
    """The data that the models of a column were made from, each once."""
    sources = [s for node in nodes if node.column == column for s in node.inputs]
    return list(dict.fromkeys(s for s in sources if s.path.startswith("data/")))


def _row_tops(data: Mapping[str, Sequence[Source]]) -> tuple[float, float, float, float]:
    """Where the rows labels, data, reward model and policy begin."""
    tallest = max((len(sources) for sources in data.values()), default=1)
    labels = TOP
    first = labels + 44.0 + GAP
    second = first + 14.0 + 2 * LINE * max(tallest, 1) + GAP
    return labels, first, second, second + 44.0 + GAP


def _edges(nodes: Sequence[ModelNode], boxes: Mapping[str, Box]) -> list[str]:
    parts = []
    for node in nodes:
        target = boxes[node.path]
        for source in node.inputs:
            if source.path in boxes:
                parts.append(_edge(boxes[source.path], target))
        if f"data {node.column}" in boxes and _uses_data(node):
            parts.append(_edge(boxes[f"data {node.column}"], target))
    for key, box in boxes.items():
        column = key.removeprefix("labels ")
        if key.startswith("labels ") and f"data {column}" in boxes:
            parts.append(_edge(box, boxes[f"data {column}"]))
    return parts


def _uses_data(node: ModelNode) -> bool:
    return any(source.path.startswith("data/") for source in node.inputs)


def _edge(source: Box, target: Box) -> str:
    """Down within a column, across to the next column, or in an arc below to one further away."""
    if source.x == target.x:
        # Passes beside the reward model, so that the line stays visible.
        side = 14.0 if target.style == "policy" and source.style == "data" else BOX / 2
        x = source.x + side
        return f'<path class="edge" d="M{x:.0f},{source.y + source.height:.0f} V{target.y:.0f}"/>'
    start, end = source.x + BOX, target.x
    if end - start < COLUMN:
        bend = (start + end) / 2
        return (
            f'<path class="edge" d="M{start:.0f},{source.middle:.0f} C{bend:.0f},'
            f'{source.middle:.0f} {bend:.0f},{target.middle:.0f} {end:.0f},{target.middle:.0f}"/>'
        )
    low = max(source.y + source.height, target.y + target.height)
    start, end = source.x + BOX / 2, target.x + BOX / 2
    return (
        f'<path class="edge far" d="M{start:.0f},{source.y + source.height:.0f} C{start:.0f},'
        f'{low + 40:.0f} {end:.0f},{low + 40:.0f} {end:.0f},{target.y + target.height:.0f}"/>'
    )


def _box(box: Box) -> str:
    lines = "".join(
        f'<text x="{box.x + 10:.0f}" y="{box.y + 19 + 2 * LINE * number:.0f}">{escape(name)}</text>'
        f'<text class="hash" x="{box.x + 10:.0f}" y="{box.y + 33 + 2 * LINE * number:.0f}">'
        f"{escape(digest)}</text>"
        for number, (name, digest) in enumerate(box.lines)
    )
    return (
        f'<rect class="box {box.style}" x="{box.x:.0f}" y="{box.y:.0f}" width="{BOX:.0f}" '
        f'height="{box.height:.0f}" rx="6"/>{lines}'
    )


def _title(number: int, column: str) -> str:
    x = (number + 0.5) * COLUMN
    name = shortened(column, LONGEST)
    return f'<text class="column middle" x="{x:.0f}" y="14">{escape(name)}</text>'


def _short(path: str) -> str:
    """The part of a data path that says what it is, at most `LONGEST` characters."""
    parts = [part for part in path.removesuffix(".jsonl").split("/") if part]
    name = "/".join(parts[-2:]) if parts[-1] in ("train", "heldout", "test") else parts[-1]
    return shortened(name, LONGEST)
