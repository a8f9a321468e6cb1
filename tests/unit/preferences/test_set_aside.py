"""Malformed rows are set aside and listed up to a number, and never used."""

import json

import pytest

from preferences.__main__ import main
from preferences.formats.reading import open_source
from preferences.reader import MAX_ROW_BYTES, MalformedDataError
from preferences.source_params import SourceParams
from preferences.sources import gather
from tests.unit.preferences.layout_rows import GOOD, alpaca, write


def test_sources_in_params_take_maps_and_set_rows_aside(tmp_path):
    rows = [*({**alpaca(n, 1)} for n in range(20)), {**alpaca(20, 1), "output_1": 5}]
    path = write(tmp_path / "x.jsonl", rows)
    params = SourceParams(path=str(path), map="alpaca_eval", skip_malformed=1)
    (gathered,) = gather([params], heldout_fraction=0.2)
    assert len(gathered.rows) == 20
    assert gathered.to_row()["malformed"] == [
        f'{path}:21: field "response_a": expected text, got 5'
    ]
    with pytest.raises(MalformedDataError, match=':21: field "response_a"'):
        gather([SourceParams(path=str(path), map="alpaca_eval")], heldout_fraction=0.2)
    for wrong in ({"map": "shp", "format": "trl"}, {"skip_malformed": -1}):
        with pytest.raises(ValueError, match=r"prepare\.sources"):
            SourceParams(path="x", **wrong)


def test_malformed_rows_are_set_aside_and_listed_up_to_a_number(tmp_path, capsys):
    path, out = tmp_path / "x.jsonl", tmp_path / "out"
    lines = [json.dumps(row) for row in GOOD]
    lines[7:7] = ["{", '{"prompt": 1, "chosen": 2, "rejected": null}']
    path.write_text("\n".join(lines) + "\n")
    arguments = ["check", str(path), "--report", str(out)]
    assert main([*arguments, "--skip-malformed", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 4
    assert not out.exists()
    assert main([*arguments, "--skip-malformed", "2"]) == 0
    said = capsys.readouterr().out
    assert f"malformed rows set aside: 2\n  {path}:8: not JSON" in said
    assert f'  {path}:9: field "prompt": expected text or messages, got 1\n' in said
    listed = json.loads((out / "statistics.json").read_text())["malformed rows set aside"]
    assert [row.partition(": ")[0] for row in listed] == [f"{path}:8", f"{path}:9"]
    assert f"malformed, set aside: {path}:8" in (out / "report.md").read_text().replace("\\", "")
    written = [(out / f"{split}.jsonl").read_text().count("\n") for split in ("train", "heldout")]
    assert sum(written) == 60


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.gz", b"no gzip"),
        ("joined.jsonl", b'{"prompt": "p", "chosen": "a", "rejected": "b"}{"prompt": "q"}\n'),
        ("nul.jsonl", b'{"prompt": "p"\0\0\0\n'),
        ("long.jsonl", b'{"prompt": "' + b"p" * MAX_ROW_BYTES + b'"}\n'),
        ("cut.jsonl", b'{"prompt": "p", "chosen": "a", "rejected": "b"}\n{"prompt": "p", "cho'),
        ("x.json", b'[{"prompt": "p", "chosen": "a", "rejected": "b"}, {]'),
        ("x.csv", b'prompt,chosen,rejected\np,a,b\np,"a,b\n'),
        ("x.parquet", b"PAR1"),
    ],
)
def test_a_damaged_file_is_refused_however_many_rows_may_be_set_aside(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MalformedDataError):
        list(open_source(tmp_path / name, "trl", skip_malformed=1000))


def test_the_format_is_that_of_a_later_row_if_the_first_may_be_set_aside(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"error": "timeout"}, *GOOD])
    with pytest.raises(MalformedDataError, match=":1: columns of no known format"):
        open_source(path)
    source = open_source(path, skip_malformed=1)
    assert len(list(source)) == 60
    assert len(source.aside) == 1


@pytest.mark.parametrize(
    "option",
    [
        *("--max-memory=nan", "--max-memory=inf", "--max-memory=-1", "--max-memory=1e300"),
        *("--max-memory=0", "--max-memory=x", "--skip-malformed=-3", "--skip-malformed=1.5"),
    ],
)
def test_a_limit_that_is_none_is_refused_at_once(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["check", "x.jsonl", option])
    assert ended.value.code == 2
    name, value = option.split("=")
    assert f"argument {name}: '{value}', expected" in capsys.readouterr().err


def test_of_a_row_that_is_set_aside_no_pair_is_used(tmp_path):
    far = {"prompt": "p", "responses": ["a", "b", "c"], "scores": [1.7e308, 0, -1.7e308]}
    near = {"prompt": "q", "responses": ["a", "b"], "scores": [1, 0]}
    source = open_source(write(tmp_path / "x.jsonl", [far, near]), skip_malformed=1)
    assert [item.preference.prompt for item in source] == ["q"]
    assert len(source.aside) == 1
