"""YAML whose aliases stand for more than anyone would write."""

import os

import pytest

from tasks.params.loading import ParamsError, read_yaml
from tasks.params.yaml_files import MAX_BYTES, YAMLTooLargeError, load_yaml


def refused(path):
    with pytest.raises(ParamsError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value)


def levels(depth, width):
    """Each level a list of aliases to the one before."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, depth + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


def test_aliases_are_refused_by_what_they_stand_for(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(levels(9, 9))
    # 2 values in a0; each level 1 more than nine times the one before; 10 keys and the mapping.
    sizes = [2]
    for _ in range(9):
        sizes.append(1 + 9 * sizes[-1])
    assert f"{sum(sizes) + 11:,} values with its aliases" in refused(path)


def test_merge_keys_count_as_what_they_merge(tmp_path):
    path = tmp_path / "params.yaml"
    lines = ["m0: &m0 {k: 1}"]
    for level in range(1, 12):
        lines.append(f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}]}}")
    path.write_text("\n".join(lines))
    assert "with its aliases (*) replaced" in refused(path)


def test_an_alias_inside_what_it_stands_for_is_refused(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("run: &r\n  again: *r\n")
    assert "inside what it stands for" in refused(path)


def test_ordinary_aliases_are_read(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("a: &a {rate: 1e-5}\nb: *a\nc: {<<: *a, d: 1}\n")
    assert read_yaml(path) == {
        "a": {"rate": 1e-5},
        "b": {"rate": 1e-5},
        "c": {"rate": 1e-5, "d": 1},
    }


@pytest.mark.long
def test_depth_and_size_have_limits(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("a: " + "[" * 5000 + "]" * 5000)
    assert "nested too deeply" in refused(path)
    path.write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(YAMLTooLargeError, match="over 1,048,576 bytes"):
        load_yaml(path)


def test_a_pipe_is_no_params_file(tmp_path):
    path = tmp_path / "params.yaml"
    os.mkfifo(path)
    assert "is a named pipe, expected a regular file" in refused(path)
