"""A file of an input is its name and its content."""

from pathlib import Path
from typing import Any

from tasks.running.fingerprint import differences, fingerprint, identify

HERE = {"bits": "portable", "processor": "A", "torch": "2.13.0", "device": "cpu"}


def test_files_that_trade_names_in_an_input_are_another_run(tmp_path: Path) -> None:
    """As train.jsonl and heldout.jsonl might."""

    def of(**files: str) -> Any:
        for name, text in files.items():
            (tmp_path / "data").mkdir(exist_ok=True)
            (tmp_path / "data" / name).write_text(text)
        return identify(tmp_path, "sft", params={}, inputs=["data"], environment=HERE)

    first = of(heldout="one", train="two")
    second = of(heldout="two", train="one")
    (tmp_path / "data/train").rename(tmp_path / "data/trained")
    third = of()

    assert len({fingerprint(one) for one in (first, second, third)}) == 3
    assert differences(second, third) == "inputs data"
