"""TLS for both HTTP clients: what is trusted and shown, and what went wrong in words.

`ssl` is imported by the functions that need it: it is heavy, and most loads are plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servetune.errors import UserError
from servetune.records import Transport

if TYPE_CHECKING:
    import ssl


def tls_context(transport: Transport) -> ssl.SSLContext:
    """Make what TLS needs to know; raises UserError for a file that cannot be used."""
    import ssl  # noqa: PLC0415

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if transport.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if transport.ca_file is not None:
        _check_readable("--ca-file", transport.ca_file)
        try:
            context.load_verify_locations(cafile=transport.ca_file)
        except ssl.SSLError as bad:
            where = f"--ca-file {transport.ca_file}"
            raise UserError(
                where, f"it holds no certificate ({_words(bad)})", "name a PEM file of CERTIFICATEs"
            ) from bad
    elif not transport.insecure:
        context.load_default_certs()
    _load_client_certificate(context, transport)
    return context


def _load_client_certificate(context: ssl.SSLContext, transport: Transport) -> None:
    import ssl  # noqa: PLC0415

    certificate, key = transport.client_cert, transport.client_key
    if certificate is None:
        if key is not None:
            raise UserError(f"--client-key {key}", "there is no certificate for it", "give --client-cert too")
        return
    _check_readable("--client-cert", certificate)
    if key is not None:
        _check_readable("--client-key", key)
    key_at = f"--client-cert {certificate}" if key is None else f"--client-key {key}"

    def no_password() -> str:
        fix = "decrypt it to a file of its own: openssl pkey -in KEY -out PLAIN_KEY"
        raise UserError(key_at, "the private key is encrypted", fix)

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as bad:
        where = f"--client-cert {certificate}" + (f", --client-key {key}" if key is not None else "")
        fix = "give the PEM file of the certificate and that of its own private key, or one file with both"
        raise UserError(where, f"certificate and key cannot be used ({_words(bad)})", fix) from bad


def _check_readable(flag: str, path: str) -> None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # Path turns "" into a folder
            file.read(1)
    except (OSError, ValueError) as bad:
        problem = bad.strerror if isinstance(bad, OSError) and bad.strerror else str(bad)
        raise UserError(f"{flag} {path}", f"it cannot be read: {problem}", "name a PEM file that can be read") from bad


def tls_problem(problem: OSError, server_name: str) -> str:
    """Say what went wrong in TLS with `server_name`; "" where `problem` is none of TLS."""
    import ssl  # noqa: PLC0415

    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {server_name} was not accepted: {problem.verify_message}"
            " (name the file of its authority with --ca-file, or accept any certificate with --insecure)"
        )
    if isinstance(problem, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return "the server closed the TLS connection"
    if not isinstance(problem, ssl.SSLError):
        return ""
    words = _words(problem)
    if "wrong version number" in words or "record layer failure" in words:
        return f"{server_name} does not speak TLS here ({words}): is it http:// instead of https://?"
    if "certificate required" in words or "handshake failure" in words:
        return f"TLS: {words} (a server that asks for a certificate gets one with --client-cert and --client-key)"
    return f"TLS: {words}"


def _words(problem: ssl.SSLError) -> str:
    """OpenSSL's reason in words."""
    return (problem.reason or str(problem)).replace("_", " ").lower()
