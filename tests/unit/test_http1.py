"""Addresses, request bytes, response framing, probes."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.errors import UserError
from servetune.http1 import (
    NoAnswer,
    Response,
    ResponseFraming,
    get,
    get_json,
    parse_proxy,
    parse_url,
    request_bytes,
    send,
    unix_path,
)
from servetune.records import Transport
from servetune.tls import tls_context
from tests.unit.loadgen.servers import HAS_IPV6, PrivateCa, connect_proxy, plain_server, tls_server, unix_server


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, "", "127.0.0.1:8000", False)),
        ("host", ("host", 80, "", "host:80", False)),
        ("host:8000/base/", ("host", 8000, "/base", "host:8000", False)),
        ("http://[::1]:9/v1", ("::1", 9, "/v1", "[::1]:9", False)),
        ("https://host", ("host", 443, "", "host:443", True)),
        ("HTTPS://Host:8443/a/b//", ("host", 8443, "/a/b", "host:8443", True)),
        ("https://[::1]", ("::1", 443, "", "[::1]:443", True)),
        ("http://[fe80::1%25eth0]:9", ("fe80::1%eth0", 9, "", "[fe80::1]:9", False)),
        ("http://h/a b/ü?x=1#y", ("h", 80, "/a%20b/%C3%BC", "h:80", False)),
        ("http://h/a%20b", ("h", 80, "/a%20b", "h:80", False)),
        ("http://bücher.example", ("xn--bcher-kva.example", 80, "", "xn--bcher-kva.example:80", False)),
    ],
)
def test_addresses(text: str, parts: tuple[str, int, str, str, bool]) -> None:
    """Host, port, path, Host header, TLS."""
    url = parse_url(text)
    assert (url.host, url.port, url.path, url.authority, url.tls) == parts


@pytest.mark.parametrize(
    "text",
    [
        "http://",
        "http://host:99999",
        "http://host:0",
        "http://host:x",
        "ftp://host",
        "http://[::1",
        "http://ü..x",
        f"http://{'x' * 64}.example",
        "http://.h",
        "http://a b",
    ],
)
def test_addresses_that_are_refused(text: str) -> None:
    """The message names the address."""
    with pytest.raises(UserError, match="URL"):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://me:pw-1@host",
        "me:pw-1@host",
        "https://pw-1@host/v1",
        "http://me:pw-1/pw-2@host",
        "http://me:x@pw-1@host",
    ],
)
def test_a_login_in_an_address_is_refused_and_not_shown(text: str) -> None:
    """The user is told where it belongs."""
    with pytest.raises(UserError) as refused:
        parse_url(text)
    assert "pw-" not in str(refused.value)
    assert "***@" in str(refused.value)
    assert "login" not in str(refused.value) or "--header" in refused.value.fix


def test_request_bytes() -> None:
    """Head, blank line, body."""
    wire = request_bytes("POST", "/p", authority="h:1", headers={"A": "b"}, body=b"xy")
    assert wire == b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\nxy"
    assert request_bytes("GET", "", authority="h:1") == b"GET / HTTP/1.1\r\nHost: h:1\r\n\r\n"


@pytest.mark.parametrize(("name", "value"), [("A\r\nB", "c"), ("A", "b\r\nC: d"), ("Ä", "b")])
def test_headers_cannot_break_the_framing(name: str, value: str) -> None:
    """A line end in a header would start a new one."""
    with pytest.raises(UserError, match="header"):
        request_bytes("GET", "/", authority="h", headers={name: value})


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)


@settings(deadline=None)
@given(st.lists(st.integers(1, len(CHUNKED) - 1), max_size=20))
def test_a_chunked_answer_in_any_pieces(places: list[int]) -> None:
    """Status, headers, body and end do not depend on how the bytes came."""
    framing = ResponseFraming()
    edges = [0, *sorted(set(places)), len(CHUNKED)]
    for begin, end in itertools.pairwise(edges):
        assert not framing.complete
        assert framing.feed(memoryview(CHUNKED)[begin:end]) is None
    assert (framing.status, b"".join(framing.parts), framing.complete) == (200, b"hello world", True)
    assert framing.headers["content-type"] == "text/event-stream"
    assert framing.keep_alive


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhijunk", False),
    ],
)
def test_which_connections_may_be_kept(head: bytes, kept: bool) -> None:
    """By version, header and what follows."""
    framing = ResponseFraming()
    assert framing.feed(head) is None
    assert (framing.complete, framing.keep_alive, b"".join(framing.parts)) == (True, kept, b"hi")


def test_a_body_without_length_ends_with_the_connection() -> None:
    """A body with a length or chunks that did not end is cut off."""
    framing = ResponseFraming()
    framing.feed(b"HTTP/1.1 200 OK\r\n\r\nsome")
    assert not framing.complete
    assert framing.end_of_file()
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", b"HTTP/1.1 20", CHUNKED[:-9]):
        cut = ResponseFraming()
        cut.feed(head)
        assert not cut.end_of_file()


def test_bytes_that_are_no_http() -> None:
    """The problem is told, and nothing is complete."""
    framing = ResponseFraming()
    assert "not HTTP/1.1" in str(framing.feed(b"SSH-2.0-OpenSSH\r\n"))
    framing.release()
    assert framing.feed(b"more") is not None


@contextmanager
def server(answer: bytes, *, hold: bool = False) -> Iterator[str]:
    """A server that sends `answer` to one request and closes; `hold` keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        release = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if hold:
                    release.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        release.set()
        thread.join(10)


def test_get_returns_the_whole_answer() -> None:
    """Status, headers, body."""
    with server(CHUNKED) as url:
        answer = get(f"{url}/path?x=1")
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (200, b"hello world")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed the connection before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", "closed the connection before"),
        (b"nonsense\r\n\r\n", "not HTTP/1.1"),
    ],
)
def test_get_says_why_there_is_no_answer(answer: bytes, reason: str) -> None:
    """A failure is a value."""
    with server(answer) as url:
        result = get(url)
    assert isinstance(result, NoAnswer)
    assert reason in result.reason


def test_get_waits_no_longer_than_it_was_told() -> None:
    """In total, also when some bytes came."""
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", hold=True) as url:
        result = get(url, timeout_s=0.2)
    assert result == NoAnswer(reason="no answer within 0.2 s")


def test_a_refused_connection_is_no_answer() -> None:
    """Nobody listens on a port that was just given back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert get(f"http://127.0.0.1:{port}") == NoAnswer(reason="Connection refused")
    assert get_json(f"http://127.0.0.1:{port}") is None


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}', {"a": 1}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{nop", None),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", None),
    ],
)
def test_get_json(answer: bytes, value: object) -> None:
    """The value, or None for anything else."""
    with server(answer) as url:
        assert get_json(url) == value


def test_get_gives_up_on_an_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe keeps no more than its limit."""
    monkeypatch.setattr("servetune.http1._LONGEST_PROBE_BYTES", 100)
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 200) as url:
        result = get(url)
    assert result == NoAnswer(reason="the answer is longer than 100 bytes")


# --------------------------------------------------------------------------- TLS, proxies, Unix sockets, IPv6


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PrivateCa:
    """One authority for all tests here."""
    return PrivateCa(tmp_path_factory.mktemp("ca"))


def post(url: str, transport: Transport, timeout_s: float = 5.0) -> Response | NoAnswer:
    """Ask for a completion."""
    return send("POST", f"{url}/v1/chat/completions", body=b"{}", timeout_s=timeout_s, transport=transport)


def whole(answer: Response | NoAnswer) -> bool:
    """The completion is there to its end."""
    assert isinstance(answer, Response), answer
    return answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n")


def why(answer: Response | NoAnswer) -> str:
    """The reason of a missing answer."""
    assert isinstance(answer, NoAnswer)
    return answer.reason


def test_tls_with_a_private_authority(ca: PrivateCa) -> None:
    """Trusted by its file, refused without it, accepted by the switch."""
    with tls_server(ca) as server:
        assert whole(post(server.url, Transport(ca_file=ca.ca_file)))
        assert whole(post(server.url, Transport(insecure=True)))
        assert get_json(f"{server.url}/v1/models", transport=Transport(ca_file=ca.ca_file)) is not None
        reason = why(post(server.url, Transport()))
    assert "certificate of 127.0.0.1" in reason
    assert "--ca-file" in reason
    assert "--insecure" in reason


def test_tls_checks_the_name(ca: PrivateCa) -> None:
    """A certificate for another host is refused, unless any is accepted."""
    with tls_server(ca, names=("other.example",)) as server:
        assert "not accepted" in why(post(server.url, Transport(ca_file=ca.ca_file)))
        assert whole(post(server.url, Transport(ca_file=ca.ca_file, insecure=True)))


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_with_a_client_certificate(ca: PrivateCa, newest: ssl.TLSVersion) -> None:
    """From two files or from one; without it the reason tells which option is missing."""
    with tls_server(ca, asks_for_certificate=True, newest=newest) as server:
        pair = Transport(ca_file=ca.ca_file, client_cert=ca.client_cert, client_key=ca.client_key)
        assert whole(post(server.url, pair))
        assert whole(post(server.url, Transport(ca_file=ca.ca_file, client_cert=ca.both)))
        reason = why(post(server.url, Transport(ca_file=ca.ca_file)))
    assert "--client-cert" in reason


def test_tls_meets_a_server_without_it() -> None:
    """The reason says what was probably meant."""
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        reason = why(post(url.replace("http:", "https:"), Transport(insecure=True)))
    assert "http://" in reason


def test_tls_meets_a_server_that_closes() -> None:
    """A close in the handshake is told as such."""
    with server(b"") as url:
        assert why(post(url.replace("http:", "https:"), Transport(insecure=True)))


def test_tls_waits_no_longer_than_it_was_told() -> None:
    """The handshake counts too."""
    with server(b"", hold=True) as url:
        answer = post(url.replace("http:", "https:"), Transport(insecure=True), timeout_s=0.2)
    assert answer == NoAnswer(reason="no answer within 0.2 s")


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"ca_file": "{folder}/none.pem"}, ["--ca-file", "none.pem", "No such file", "PEM"]),
        ({"ca_file": "{folder}"}, ["--ca-file", "cannot be read"]),
        ({"ca_file": "{folder}/text"}, ["--ca-file", "text", "no certificate"]),
        ({"client_cert": "{folder}/none.pem"}, ["--client-cert", "none.pem"]),
        ({"client_cert": "{folder}/client.pem"}, ["--client-cert", "client.pem", "one file with both"]),
        ({"client_cert": "{folder}/client.pem", "client_key": ""}, ["--client-key"]),
        ({"client_cert": "{folder}/client.pem", "client_key": "{folder}/other.key"}, ["other.key", "its own"]),
        ({"client_cert": "{folder}/client.pem", "client_key": "{folder}/locked.key"}, ["locked.key", "encrypted"]),
        ({"client_key": "{folder}/client.key"}, ["--client-key", "--client-cert too"]),
    ],
)
def test_files_that_tls_cannot_use(ca: PrivateCa, about: dict[str, Any], says: list[str]) -> None:
    """The message names the file and what to do."""
    folder = Path(ca.ca_file).parent
    (folder / "text").write_text("no certificate at all\n")
    key = generate_private_key(SECP256R1())
    for name, secret in (("other.key", NoEncryption()), ("locked.key", BestAvailableEncryption(b"secret"))):
        (folder / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    with pytest.raises(UserError) as refused:
        tls_context(Transport(**{name: value.format(folder=folder) for name, value in about.items()}))
    assert all(part in str(refused.value) for part in says), refused.value


def test_a_proxy_connects_plain_http_and_tls(ca: PrivateCa) -> None:
    """It is asked for the server's own address, and sees nothing of TLS."""
    with connect_proxy() as proxy:
        with plain_server() as server:
            assert whole(post(server.url, Transport(proxy=proxy.url)))
        with tls_server(ca) as secure:
            assert whole(post(secure.url, Transport(proxy=proxy.url, ca_file=ca.ca_file)))
    assert proxy.targets == [server.url.removeprefix("http://"), secure.url.removeprefix("https://")]


def test_a_proxy_that_wants_a_login() -> None:
    """The login comes from the address, percent signs decoded; without it the reason says how to give it."""
    with connect_proxy(login="me:p@ss:ü") as proxy, plain_server() as server:
        address = proxy.url.replace("http://", "http://me:p%40ss%3A%C3%BC@")
        assert whole(post(server.url, Transport(proxy=address)))
        assert whole(post(server.url, Transport(proxy=address.removeprefix("http://"))))
        reason = why(post(server.url, Transport(proxy=proxy.url)))
    assert "407" in reason
    assert "USER:PASSWORD" in reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403 Forbidden"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1: 'SSH-2.0-OpenSSH'"),
        (b"HTTP/1.1 hello\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70000, "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nVia", "closed the connection"),
    ],
)
def test_a_proxy_that_does_not_connect(answer: bytes, reason: str) -> None:
    """Its answer is shown."""
    with connect_proxy(answer=answer) as proxy:
        assert reason in why(post("http://127.0.0.1:9", Transport(proxy=proxy.url)))


def test_a_proxy_that_cannot_be_reached_or_cannot_reach() -> None:
    """The reason tells which of the two it was."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert "the proxy 127.0.0.1" in why(post("http://127.0.0.1:9", Transport(proxy=nobody)))
    with connect_proxy() as proxy:
        assert "502" in why(post(nobody, Transport(proxy=proxy.url)))


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement goes where its user said."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with plain_server() as server:
        assert whole(post(server.url, Transport()))


@pytest.mark.parametrize("text", ["https://me:pw-1@host:1", "socks5://me:pw-1@h", "me:pw-1@host:x", "http://pw-1@", ""])
def test_addresses_of_proxies_that_are_refused(text: str) -> None:
    """The option is named, the login is not shown."""
    with pytest.raises(UserError, match="--proxy") as refused:
        parse_proxy(Transport(proxy=text))
    assert "pw-1" not in str(refused.value)


def test_a_unix_socket(ca: PrivateCa, tmp_path: Path) -> None:
    """Plain and with TLS; the Host header is the URL's."""
    with unix_server(tmp_path / "plain") as server:
        assert whole(post(server.url, Transport(unix_socket=str(tmp_path / "plain"))))
    assert b"\r\nHost: localhost:80\r\n" in server.heads[0]
    with unix_server(tmp_path / "tls", context=ca.server_context("localhost")) as secure:
        assert whole(post(secure.url, Transport(unix_socket=str(tmp_path / "tls"), ca_file=ca.ca_file)))
    assert why(post(secure.url, Transport(unix_socket=str(tmp_path / "none")))) == "No such file or directory"


@pytest.mark.parametrize("path", ["", "/" + "x" * 104, "/a\0b"])
def test_paths_that_are_no_sockets(path: str) -> None:
    """The system would cut them or refuse them."""
    with pytest.raises(UserError, match="--unix-socket"):
        unix_path(Transport(unix_socket=path))


def test_a_unix_socket_and_a_proxy_exclude_each_other() -> None:
    """The message names both options."""
    with pytest.raises(UserError, match=r"--proxy.*--unix-socket"):
        parse_proxy(Transport(proxy="http://host:1", unix_socket="/x"))


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 on this machine")
def test_ipv6(ca: PrivateCa) -> None:
    """Plain, with TLS, and through a proxy."""
    with plain_server(family=socket.AF_INET6) as server, connect_proxy() as proxy:
        assert whole(post(server.url, Transport()))
        assert whole(post(server.url, Transport(proxy=proxy.url)))
    assert proxy.targets[0].startswith("[::1]:")
    with tls_server(ca, family=socket.AF_INET6) as secure:
        assert whole(post(secure.url, Transport(ca_file=ca.ca_file)))
