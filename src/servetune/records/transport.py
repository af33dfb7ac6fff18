"""How a server is reached beyond its address."""

from __future__ import annotations

from servetune.records.value import Record


class Transport(Record, frozen=True, kw_only=True):
    """Ways to a server other than plain TCP. TLS is used where the URL says https, and its certificate is checked."""

    ca_file: str | None = None
    """PEM file with the authorities to trust; None: the system's."""
    client_cert: str | None = None
    """PEM file with the client's certificate, and its key unless `client_key` names it."""
    client_key: str | None = None
    insecure: bool = False
    """Accept any certificate."""
    proxy: str | None = None
    """`http://[user:password@]host:port` of a proxy that is asked to CONNECT; None: no proxy."""
    unix_socket: str | None = None
    """Path of a Unix socket to connect to; the URL then only gives the Host header and the path."""
