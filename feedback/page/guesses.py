"""Slows down and logs who tries wrong tokens, by address.

A token has 256 random bits and is not guessed at any speed. What this prevents is that guesses take
the server's time and go unseen.
"""

import ipaddress
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE = 5
"""Wrong tokens without a wait; each further one doubles it, from one second."""
LONGEST_S = 60
"""The longest wait."""
FORGOTTEN_S = 900
"""After this long without a wrong token an address is as new."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tries:
    wrong: int
    at: float
    """When the last one came."""


class Guesses:
    """Wrong tokens by address; IPv6 addresses of one /64 network count as one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = 10_000) -> None:
        """Remembers the `most` addresses that tried last."""
        self._clock, self._most = clock, most
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of addresses remembered."""
        return len(self._tries)

    def wait_s(self, address: str) -> int:
        """Whole seconds for which no token of this address is looked at; 0: none."""
        with self._lock:
            tries = self._tries.get(_network(address))
            if tries is None:
                return 0
            return max(0, math.ceil(tries.at + _pause(tries.wrong) - self._clock()))

    def wrong(self, address: str) -> None:
        """Counts a wrong token of this address and logs it, without the token."""
        network, now = _network(address), self._clock()
        with self._lock:
            tries = self._tries.pop(network, None)
            if tries is None or now - tries.at > FORGOTTEN_S:
                tries = _Tries(0, now)
            tries.wrong, tries.at = tries.wrong + 1, now
            self._tries[network] = tries
            if len(self._tries) > self._most:
                self._tries.popitem(last=False)
            count = tries.wrong
        text = "wrong token from %s: %d in a row, the next is looked at after %d s"
        _log.warning(text, address, count, _pause(count))


def _pause(wrong: int) -> int:
    return 0 if wrong < FREE else min(LONGEST_S, 2 ** min(wrong - FREE, 10))


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        # Not from the network: a Unix socket, or a test's client.
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))
