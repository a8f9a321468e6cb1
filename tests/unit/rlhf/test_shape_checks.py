"""The plugin that checks shapes while the tests run."""

import importlib
from pathlib import Path

from tests.shape_checks import modules_with_shapes

RLHF = Path(__file__).resolve().parents[3] / "rlhf"


def test_every_module_that_names_a_shape_is_imported_under_its_watch() -> None:
    names = modules_with_shapes()
    assert "rlhf.masked" in names
    for name in names:
        loader = importlib.import_module(name).__loader__
        assert "jaxtyping" in type(loader).__module__, name


def test_shapes_have_their_names_in_one_module() -> None:
    """A module that took them from elsewhere would not be watched."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in RLHF.rglob("*.py")}
    assert [name for name, text in texts.items() if "import jaxtyping" in text] == []
    assert [name for name, text in texts.items() if "from jaxtyping" in text] == ["shapes.py"]
    assert [name for name, text in texts.items() if "import shapes" in text] == []
