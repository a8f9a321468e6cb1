"""What the cells of a workbook are read as, and what of a workbook is refused."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from preferences.formats.files import read_records
from preferences.reader import MalformedDataError, Problems
from tests.file_cases import write_workbook

openpyxl = pytest.importorskip("openpyxl")


def saved(path: Path, *rows: list[Any], merged: str = "") -> Path:
    book = openpyxl.Workbook()
    for row in (["prompt", "chosen", "rejected"], *rows):
        book.active.append(row)
    if merged:
        book.active.merge_cells(merged)
    book.save(path / "x.xlsx")
    return path / "x.xlsx"


def refused(path: Path) -> str:
    with pytest.raises(MalformedDataError) as error:
        list(read_records(path))
    return str(error.value).removeprefix(str(path))


def test_merged_cells_are_refused_in_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, ["p", "a", "b"], [None, "c", "d"], merged="A2:A3")

    assert refused(path) == ": cells A2:A3 are merged; split them and fill each"


def test_a_formula_without_its_value_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, ["p", "a", "b"], ["q", "=1+1", "d"])

    start = ": cell B3 is a formula saved without its value; save the workbook"
    assert refused(path).startswith(start)


def test_a_formula_is_read_as_the_value_that_it_was_saved_with(tmp_path: Path) -> None:
    path = tmp_path / "x.xlsx"
    number, empty = "<c><f>1+1</f><v>2</v></c>", '<c t="str"><f>""</f><v></v></c>'
    write_workbook(path, [f'<row><c t="str"><v>p</v></c>{number}{empty}</row>'])

    (found,) = read_records(path)

    assert found.row == {"prompt": "p", "chosen": "2", "rejected": ""}


def test_an_error_in_a_cell_is_a_malformed_row(tmp_path: Path) -> None:
    path = saved(tmp_path, ["p", "a", "b"], ["q", "#NAME?", "d"], ["r", "e", "f"])
    where = f"{path} row 3: cell B3: expected a value, found the error #NAME?"

    problems = Problems(skip=1)
    kept = [found.row["prompt"] for found in read_records(path, problems)]

    assert kept == ["p", "r"]
    assert problems.aside == [where]
    assert refused(path) == where.removeprefix(str(path))


def test_dates_and_line_breaks_are_read_as_they_look(tmp_path: Path) -> None:
    day, time = datetime.date(2024, 1, 5), datetime.datetime(2024, 1, 5, 7, 30)
    path = saved(tmp_path, ["one_x000D_\ntwo", day, time])

    (found,) = read_records(path)

    assert list(found.row.values()) == ["one\r\ntwo", "2024-01-05", "2024-01-05T07:30:00"]
