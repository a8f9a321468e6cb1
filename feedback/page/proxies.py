"""The page behind a proxy that adds TLS: what the proxy says of a request, if it is a named one.

Anybody can write `X-Forwarded-For` into a request. So these headers count only where the connection
comes from an address that `--behind-proxy` names, and nobody else is served there: the page itself
speaks HTTP in clear.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyError(Exception):
    """A request that no named proxy can have sent like this; `status` is that of the reply."""

    def __init__(self, status: int, text: str) -> None:
        """`text` tells whoever runs the proxy what is wrong."""
        super().__init__(text)
        self.status, self.text = status, text


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies in front of the page; none, unless named."""

    networks: tuple[_Network, ...] = ()
    sign_in_header: str | None = None
    """Where a proxy writes the name of whom it has signed in; None: nowhere."""

    @classmethod
    def of(cls, named: Sequence[str], sign_in_header: str | None = None) -> Self:
        """Reads addresses and networks.

        Raises:
            ValueError: one is neither, or there is a header but no proxy to believe it from.
        """
        try:
            networks = tuple(ipaddress.ip_network(one) for one in named)
        except ValueError as error:
            raise ValueError(
                f"--behind-proxy: {error}; expected an address or a network, such as 10.0.0.5"
            ) from error
        if sign_in_header is not None and not networks:
            raise ValueError(
                "--sign-in-header is believed of a proxy only: name it, --behind-proxy"
            )
        return cls(networks, sign_in_header)

    def __bool__(self) -> bool:
        """Whether there is one in front."""
        return bool(self.networks)

    def named(self, address: str) -> bool:
        """Whether this is the address of a named proxy."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self.networks)

    def client(self, peer: str, headers: Headers) -> str:
        """The address of the person's machine; `peer` is where the connection comes from.

        Without proxies that is `peer`, whatever the headers say. Of several forwarded addresses it
        is the last that is no named proxy: those before it were written by somebody else.

        Raises:
            ProxyError: `peer` is no named proxy (403), or it names no address, or says that the
                person came without TLS (400).
        """
        if not self.networks:
            return peer
        if not self.named(peer):
            raise ProxyError(403, "open this page by its proxy")
        if headers.getlist("x-forwarded-proto") != ["https"]:
            raise ProxyError(400, "expected X-Forwarded-Proto: https from the proxy")
        chain = ",".join(headers.getlist("x-forwarded-for")).split(",")
        for one in reversed([each.strip() for each in chain]):
            if not _is_address(one):
                raise ProxyError(400, "expected X-Forwarded-For with an address from the proxy")
            if not self.named(one):
                return one
        return chain[0].strip()

    def signed_in(self, headers: Headers) -> str | None:
        """The name of whom the proxy has signed in, if it does that; call `client` before.

        Raises:
            ProxyError: several names, or none that is text (400).
        """
        if self.sign_in_header is None:
            return None
        found = headers.getlist(self.sign_in_header)
        if not found:
            return None
        try:
            (name,) = found
            return name.encode("latin-1").decode("utf-8") or None
        except ValueError as error:
            raise ProxyError(400, f"expected one name in {self.sign_in_header}") from error


NO_PROXIES = Proxies()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
