"""From an address to routes: the name is looked up once, before the load, and never by a worker."""

from __future__ import annotations

import socket
from typing import cast

from servetune.http1 import Url, connect_bytes, parse_proxy, unix_path
from servetune.loadgen.transport import Route
from servetune.records import RequestErrorKind, Transport
from servetune.tls import tls_context

_PROBE_TIMEOUT_S = 5.0


class ResolveFailed(Exception):
    """The name of the server or of its proxy leads to no address."""

    kind: RequestErrorKind = "dns"

    def __init__(self, message: str) -> None:
        self.message = message
        super().__init__(message)


def routes(url: Url, transport: Transport) -> tuple[Route, ...]:
    """Return all ways to `url`, the first that accepts a connection in front.

    A single one is not tried: the load itself will tell. A trial waits 5 s at most. Raises ResolveFailed for a name
    without an address, UserError for a proxy, a socket path or a certificate that cannot be used.
    """
    if url.tls:
        # Each worker makes its own: this one is made to tell early what is wrong with the files.
        tls_context(transport)
    proxy = parse_proxy(transport)
    if (path := unix_path(transport)) is not None:
        return (
            Route(family=socket.AF_UNIX, address=path, tls=url.tls, server_name=url.server_name, transport=transport),
        )
    reached = url if proxy is None else proxy.url
    found = tuple(
        Route(
            family=family,
            address=address,
            tls=url.tls,
            server_name=url.server_name,
            connect_request=b"" if proxy is None else connect_bytes(proxy, url),
            transport=transport,
        )
        for family, address in _addresses(reached.host, reached.port)
    )
    return found if len(found) == 1 else accepting_first(found)


def accepting_first(found: tuple[Route, ...]) -> tuple[Route, ...]:
    """Move the first route that accepts a connection to the front; where none does, nothing is changed."""
    first = next((number for number, route in enumerate(found) if _accepts(route)), 0)
    return (found[first], *found[:first], *found[first + 1 :])


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str | int, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise ResolveFailed(f"{host} has no address: {reason}") from problem
    addresses = [(int(family), cast("tuple[str | int, ...]", address)) for family, _, _, _, address in found]
    return list(dict.fromkeys(addresses))


def _accepts(route: Route) -> bool:
    with socket.socket(route.family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(route.address)
        except OSError:
            return False
    return True
