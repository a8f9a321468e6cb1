import gzip
import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preferences.formats.files import read_records
from preferences.formats.reading import open_source
from preferences.formats.writing import write_items
from preferences.reader import MAX_ROW_BYTES, MalformedDataError
from preferences.records import Preference, Sourced, pair_id

GOOD = '{"prompt": "p", "chosen": "a", "rejected": "b"}\n'
MESSAGES = '[{"role":"user","content":"Hi"}]'


def read(path):
    return [item.preference for item in open_source(path)]


def errors_of(path):
    with pytest.raises(MalformedDataError) as caught:
        list(open_source(path))
    return caught.value


def texts(path):
    return [(row.prompt, row.chosen, row.rejected) for row in read(path)]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("42", "42"),
        ("true", "true"),
        ("null", "null"),
        ("007", "007"),
        ("[1]", "[1]"),
        ("[link](x)", "[link](x)"),
        ('"{""a"": 1}"', '{"a": 1}'),
        ('"""To be, or not to be"""', '"To be, or not to be"'),
    ],
)
def test_text_in_a_csv_cell_stays_what_it_is_whatever_it_looks_like(tmp_path, cell, text):
    path = tmp_path / "x.csv"
    path.write_text(f"prompt,chosen,rejected\np,{cell},b\n")
    assert texts(path) == [("p", text, "b")]


def test_a_csv_row_with_line_breaks_is_named_by_its_first_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('prompt,chosen,rejected,margin\n\n"p\nq",a,"b\n",0\n"p\n\n",a,b,high\np,a\n')
    assert errors_of(path).errors == [
        f'{path}:6: field "margin": expected a number, got "high"',
        f"{path}:9: 2 cells, expected 4",
    ]


@pytest.mark.parametrize("true", ["true", "True", "TRUE"])
def test_truth_values_of_a_csv_file_are_read_as_json_and_pandas_write_them(tmp_path, true):
    path = tmp_path / "x.csv"
    path.write_text(f"prompt,completion,label\np,a,{true}\np,b,False\n")
    assert texts(path) == [("p", "a", "b")]


def test_an_empty_csv_cell_is_absent_where_null_may_stand_and_empty_text_elsewhere(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("prompt,chosen,rejected,margin,round\np,a,,,\np,b,c,null,r1\n")
    first, second = read(path)
    assert (first.rejected, first.margin, first.round) == ("", 0.0, "")
    assert (second.margin, second.round) == (0.0, "r1")


def test_a_csv_cell_that_is_no_number_where_one_is_needed_is_named(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("prompt,chosen,rejected,margin\np,a,b,high\np,a,b,nan\n")
    assert errors_of(path).errors == [
        f'{path}:2: field "margin": expected a number, got "high"',
        f'{path}:3: field "margin": expected a number, got "nan"',
    ]


@pytest.mark.parametrize("to", ["preferences", "trl"])
def test_messages_and_texts_that_look_like_messages_come_back_from_csv(tmp_path, to):
    quoted = json.dumps(MESSAGES)
    rows = [
        Preference(
            pair_id=pair_id(prompt, a, b), prompt_id="p", prompt=prompt, chosen=a, rejected=b
        )
        for prompt in (json.loads(MESSAGES), MESSAGES, quoted, json.dumps(quoted))
        for a, b in ((MESSAGES, quoted), ("a\rb", "a\r\nb"))
        if isinstance(prompt, str) or to == "preferences"
    ]  # fmt: skip
    write_items(tmp_path / "x.csv", [Sourced(row, "") for row in rows], to)
    assert read(tmp_path / "x.csv") == rows


def test_problems_come_in_the_order_of_the_file_whoever_finds_them(tmp_path):
    path = tmp_path / "x.jsonl"
    damaged = b'{"prompt": NaN}\n{"prompt": "\xe9"}\n{"prompt": "\\ud83d"}\n' * 3
    path.write_bytes(GOOD.encode() + damaged + b'{"chosen": 1, "rejected": "b"}\n' * 32)
    error = errors_of(path)
    assert [int(line.split(":")[1]) for line in error.errors] == [2, 3, 4, 11]
    assert error.counts == [3, 3, 3, 32]
    assert error.total == 41


def test_the_problems_of_all_files_of_a_folder_are_reported_in_order(tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD + "[]\n")
    (tmp_path / "b.csv").write_text("prompt,chosen\np,a\n")
    (tmp_path / "c.json").write_text("{")
    (tmp_path / "d.jsonl").write_text("[]\n")
    names = [line.removeprefix(f"{tmp_path}/")[:7] for line in errors_of(tmp_path).errors]
    assert names == ["a.jsonl", "b.csv:2", "c.json:", "d.jsonl"]


def test_the_problems_of_comparisons_and_of_judgments_are_reported_together(tmp_path):
    for name in ("comparisons", "judgments"):
        (tmp_path / f"{name}.jsonl").write_text("[]\n")
    first, second = errors_of(tmp_path).errors
    assert "comparisons.jsonl:1: " in first
    assert "judgments.jsonl:1: " in second


@pytest.mark.parametrize("count", [2, 30])
def test_an_unknown_format_is_said_beside_the_damaged_lines_before_it(tmp_path, count):
    path = tmp_path / "x.jsonl"
    path.write_text("[]\n" * count + '{"question": "q"}\n')
    error = errors_of(path)
    assert error.errors[0].startswith(f"{path}:1: expected an object")
    assert error.errors[-1].startswith(f"{path}:{count + 1}: columns of no known format (question)")
    assert error.total == count + 1
    assert len(error.errors) <= 20


def test_a_row_of_csv_that_is_not_utf_8_is_named_and_the_others_are_read_on(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"prompt,chosen,rejected\np,a,b\np,caf\xe9,b\np,a,b\np,a\n")
    assert errors_of(path).errors == [
        f"{path}:3: not UTF-8: byte 0xe9; save the table as CSV in UTF-8",
        f"{path}:5: 2 cells, expected 3",
    ]


@pytest.mark.parametrize(
    ("name", "sign", "said"),
    [
        ("x.csv", ";", "expected commas between columns, found semicolons; write it with commas"),
        ("x.csv", "\t", "expected commas between columns, found tabs; name the file .tsv"),
        ("x.tsv", ",", "expected tabs between columns, found commas; write it with tabs"),
    ],
)
def test_columns_that_another_sign_sets_apart_are_named(tmp_path, name, sign, said):
    """Excel writes semicolons where a comma stands in numbers; else no column would be known."""
    path = tmp_path / name
    header = sign.join(("prompt", "chosen", "rejected"))
    path.write_text(f"{header}\n{sign.join('pab')}\n")
    (problem,) = {line.replace("\\t", "\t") for line in errors_of(path).errors}
    assert problem == f'{path}:1: one column, "{header}": {said}'


def test_one_column_is_a_table_like_others(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('"prompt, long"\na\n')
    assert [row.row for row in read_records(path)] == [{"prompt, long": "a"}]
    path.write_text("prompt; long,other\na,b\n")
    assert [row.row for row in read_records(path)] == [{"prompt; long": "a", "other": "b"}]


def table(path, **columns):
    count = max(len(column) for column in columns.values())
    texts = {name: ["p"] * count for name in ("prompt", "chosen", "rejected")}
    pq.write_table(pa.table(texts | columns), path)
    return path


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (
            pa.Array.from_buffers(
                pa.string(), 2, pa.array([b"a", b"\xff"], pa.binary()).buffers()
            ),
            'row 2: field "chosen": not UTF-8: byte 0xff at 1',
        ),
        (pa.array([0, 2**62], pa.timestamp("us")), 'row 2: field "chosen": cannot be read ('),
        (
            pa.array([None, datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Mars/Base")),
            'row 2: field "chosen": cannot be read (',
        ),
        (pa.array([0.5, float("nan")]), 'row 2: field "chosen": expected a number, found NaN'),
    ],
    ids=["not utf-8", "year 148,000", "time zone", "nan"],
)  # fmt: skip
def test_a_value_of_parquet_that_cannot_be_read_is_an_error_of_its_row(tmp_path, column, expected):
    error = errors_of(table(tmp_path / "x.parquet", chosen=column))
    (found,) = (line for line in error.errors if "row 2" in line)
    assert found.startswith(f"{tmp_path}/x.parquet {expected}")


def test_two_columns_of_parquet_with_one_name_are_refused(tmp_path):
    path = tmp_path / "x.parquet"
    names = ["prompt", "chosen", "rejected", "chosen"]
    pq.write_table(pa.table([pa.array(["p"])] * 4, names=names), path)
    assert str(errors_of(path)) == f'{path}: column "chosen": occurs twice'


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.json"])
def test_a_row_of_more_than_four_mebibytes_is_refused_in_every_kind_of_file(tmp_path, name):
    path = tmp_path / name
    half = "é" * (MAX_ROW_BYTES // 4)
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b"}] * 2
    rows[1:1] = [{"prompt": "p", "chosen": half, "rejected": half + "x"}]
    if name == "x.csv":
        lines = [",".join(row.values()) + "\n" for row in rows]
        path.write_text("prompt,chosen,rejected\n" + "".join(lines))
    elif name == "x.json":
        path.write_text(json.dumps(rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    error = errors_of(path)
    assert error.total == 1
    assert "row is over 4,194,304 bytes long" in str(error)


def test_an_open_quote_in_csv_is_not_read_to_the_end_of_the_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('prompt,chosen,rejected\np,a,b\np,"a,b\n' + "x\n" * MAX_ROW_BYTES)
    said = str(errors_of(path))
    assert "row is over 4,194,304 bytes long; the rest of the file is not read" in said


@pytest.mark.parametrize("name", ["x.jsonlines", "x.JSONL", "x.ndjson"])
def test_json_lines_are_known_by_all_their_names(tmp_path, name):
    (tmp_path / name).write_text(GOOD)
    assert texts(tmp_path / name) == [("p", "a", "b")] == texts(tmp_path)


def test_what_a_folder_holds_beside_data_is_named_unless_it_is_known_as_none(tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD)
    for name in ("README", "README.md", "LICENSE", "notes.txt", ".hidden", "a.jsonl.dvc"):
        (tmp_path / name).write_text("no data")
    assert len(read(tmp_path)) == 1
    (tmp_path / "b.jsonl.bak").write_text(GOOD)
    (tmp_path / "more").mkdir()
    (tmp_path / "z.jsonl").symlink_to("nowhere.jsonl")
    bak, more, link = errors_of(tmp_path).errors
    assert bak.startswith(f"{tmp_path}/b.jsonl.bak: not a data file; expected one of .jsonl")
    assert more == f"{tmp_path}/more: subfolders are not read"
    assert link == f"{tmp_path}/z.jsonl: no such file"


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_json_lines_in_a_json_file_are_read_as_such(tmp_path, name):
    path, content = tmp_path / name, (GOOD * 2).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [row.where for row in read_records(path)] == [f"{path}:1", f"{path}:2"]
