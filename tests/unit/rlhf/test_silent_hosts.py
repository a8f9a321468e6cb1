"""Which connections end when the other end says nothing; that they do: test_two_hosts.py."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.silent_hosts import SECONDS, end_connections_to_silent_hosts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the options are Linux's")


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def ends_in_silence(connection: socket.socket) -> bool:
    asks = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    limit = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert bool(asks) == bool(limit)
    assert limit in (0, SECONDS * 1000)
    return bool(asks)


def test_connections_to_other_addresses_end_in_silence_and_those_within_a_host_do_not(
    listening: socket.socket,
) -> None:
    with (
        socket.create_connection(listening.getsockname()) as within,
        # Linux has all of 127.0.0.0/8 on its loopback interface.
        socket.create_connection(listening.getsockname(), source_address=("127.0.0.2", 0)) as to,
    ):
        end_connections_to_silent_hosts()

        assert ends_in_silence(to)
        assert not ends_in_silence(within)
        assert not ends_in_silence(listening)


def test_no_descriptor_is_left_open(listening: socket.socket) -> None:
    with socket.create_connection(listening.getsockname(), source_address=("127.0.0.2", 0)):
        before = len(list(Path("/proc/self/fd").iterdir()))
        end_connections_to_silent_hosts()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
