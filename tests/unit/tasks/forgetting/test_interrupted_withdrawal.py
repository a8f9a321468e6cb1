"""A withdrawal that is interrupted is logged all the same."""

import pytest

from tasks.forget import main
from tasks.forgetting import removal
from tasks.workspace.withdrawn import models_withdrawn, outputs_withdrawn
from tests.traced_world import World


def test_what_an_interruption_left_unlogged_is_logged_by_the_same_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its models pass the gate, and nobody notices the objects that a pull brings back."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(removal, "log", killed)
        assert main(["--annotator", "ann", "--yes"]) == 130

    assert main(["--annotator", "ann", "--yes"]) == 0

    assert len(models_withdrawn(world.root)) == 4, "as without the interruption"
    assert len(outputs_withdrawn(world.root)) == 4
