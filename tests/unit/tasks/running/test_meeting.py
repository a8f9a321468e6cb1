"""Where the processes of a stage meet is looked at before they wait for each other for days."""

import socket

import pytest

from tasks.params.loading import ParamsError
from tasks.running import meeting
from tasks.running.meeting import require_place


@pytest.fixture(autouse=True)
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "RESOLVING_SECONDS", 0.0)
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_at_which_another_program_listens_is_refused(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(ParamsError) as refusal:
            require_place()
        assert str(refusal.value) == (
            f"MASTER_PORT: the stage's processes cannot meet at port {port} of "
            f"{socket.gethostname()}: another program listens there"
        )
        # Whoever does not listen finds somebody there, and should.
        monkeypatch.setenv("RANK", "1")
        require_place()
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        require_place()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    require_place()


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b"])
def test_a_host_that_nobody_knows_is_refused(
    monkeypatch: pytest.MonkeyPatch, host: str, rank: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(ParamsError) as refusal:
        require_place()
    words = str(refusal.value)
    assert words.startswith(f"MASTER_ADDR: the host {host!r}, where the stage's processes are to ")
    assert "\n" not in words


@pytest.mark.parametrize("found", ["", "-1", "0", "65536", "http"])
def test_what_is_no_port_is_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setenv("MASTER_PORT", found)
    with pytest.raises(ParamsError, match=f"MASTER_PORT: expected a port, .*, found '{found}'$"):
        require_place()


def test_a_launcher_that_names_no_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ParamsError, match="MASTER_ADDR: expected the host of the first process"):
        require_place()
