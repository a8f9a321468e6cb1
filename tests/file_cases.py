"""Files of preference data as cases of a test: sound rows, and how a file is written."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from preferences.records import pair_id

GOOD: list[dict[str, Any]] = [
    {"prompt": f"Where is parcel {n}?", "chosen": f"Parcel {n} is there.", "rejected": f"No {n}."}
    for n in range(12)
]
OWN = {
    "pair_id": pair_id("p", "a", "b"), "prompt_id": "p",
    "prompt": "p", "chosen": "a", "rejected": "b", "margin": 0.0, "weight": 1.0,
    "source": "", "round": "", "split": "train",
}  # fmt: skip
VOTES = {"prompt": "p", "response_a": "a", "response_b": "b", "votes": ["a"], "workers": ["x"]}
SCORED = {"prompt": "p", "responses": ["a", "b"], "scores": [1, 0]}
UNPAIRED = {"prompt": "p", "completion": "a", "label": True}
TASK = {
    "data": {"prompt": "p", "response_a": "a", "response_b": "b"},
    "annotations": [{"completed_by": 1, "result": [{"value": {"selected": "left"}}]}],
}


class Case(NamedTuple):
    """A file: its name, how it is written, and for damaged ones what the error has to say."""

    name: str
    write: Callable[[Path], object]
    says: tuple[str, ...] = ()


def line(row: object) -> bytes:
    """A row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def good_lines(count: int = 3) -> bytes:
    """Rows without fault."""
    return b"".join(line(row) for row in GOOD[:count])


def holds(name: str, content: bytes, *says: str) -> Case:
    """A file of these bytes."""
    return Case(name, lambda path: path.write_bytes(content), says)


def parquet(path: Path, columns: dict[str, Any]) -> None:
    """Writes a file of these columns."""
    pq.write_table(pa.table(columns), path)


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override '
    f'PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/><Override '
    f'PartName="/xl/sheet.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r" '
    f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets><sheet name="s" '
    'sheetId="1" r:id="r"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship '
    f'Id="r" Type="{_OFFICE}/worksheet" Target="sheet.xml"/></Relationships>',
}


def cells(row: list[str]) -> str:
    """A row of a workbook."""
    filled = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in row)
    return f"<row>{filled}</row>"


def write_workbook(path: Path, rows: list[str]) -> None:
    """A workbook of one sheet: a header and rows in its own XML, as no program would write them."""
    head = cells(["prompt", "chosen", "rejected"])
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>{head}{"".join(rows)}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**_PARTS, "xl/sheet.xml": sheet}.items():
            archive.writestr(name, content)


def book(name: str, rows: list[str], *says: str) -> Case:
    """A workbook of these rows below its header."""
    return Case(name, lambda path: write_workbook(path, rows), says)
