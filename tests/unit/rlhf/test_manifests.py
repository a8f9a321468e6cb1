"""A manifest that is not byte for byte what was written does not pass for one."""

from pathlib import Path

import pytest

from rlhf.manifests import MANIFEST, DamagedError, read_manifest, write_manifest

CONTENT = {
    "files": {"config.json": {"size": 3, "sha256": "ab"}},
    "inputs": {"models/é": ""},
    "params": {"lr": 1e-05, "half": 0.1, "none": None, "list": [1, True]},
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_manifest(tmp_path, CONTENT)
    return tmp_path / MANIFEST


def test_what_was_written_is_read(manifest: Path):
    assert read_manifest(manifest.parent) == CONTENT


def noticed(manifest: Path, content: bytes) -> bool:
    manifest.write_bytes(content)
    try:
        read_manifest(manifest.parent)
    except DamagedError as error:
        return str(error).startswith(f"{manifest}: ")
    return False


def test_every_single_bit_counts(manifest: Path):
    whole = manifest.read_bytes()
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        assert noticed(manifest, bytes(flipped)), bytes(flipped)


def test_every_cut_counts(manifest: Path):
    whole = manifest.read_bytes()
    assert all(noticed(manifest, whole[:length]) for length in range(len(whole)))
    assert not noticed(manifest, whole)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected a manifest, found no file"),
        ("{}", "cannot be read .KeyError: 'seal'"),
        ("[]", "cannot be read .TypeError"),
        ('{"seal": "00"}', "expected sha256 00, found ca3d163b"),
        ("zeros", "cannot be read .JSONDecodeError"),
    ],
)
def test_the_message_says_what_is_wrong(manifest: Path, content: str | None, message: str):
    if content is None:
        manifest.unlink()
    else:
        manifest.write_text("\0" * 99 if content == "zeros" else content)
    with pytest.raises(DamagedError, match=f"{manifest}: {message}"):
        read_manifest(manifest.parent)
