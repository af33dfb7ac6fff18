"""The way from a connected socket to HTTP, driven by a small non-blocking loop against real servers."""

from __future__ import annotations

import gc
import select
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from servetune.errors import UserError
from servetune.http1 import Url, parse_url, request_bytes
from servetune.loadgen.resolve import ResolveFailed, accepting_first, routes
from servetune.loadgen.transport import Opening, OpeningFailed, Route, TlsStream, needs_opening
from servetune.records import Transport
from servetune.tls import tls_context
from tests.unit.loadgen.servers import (
    HAS_IPV6,
    PrivateCa,
    connect_proxy,
    ipv6_server,
    plain_server,
    tls_server,
    unix_server,
)

PATIENCE_S = 10.0
BODY = b'{"stream": true}'


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PrivateCa:
    """One authority for all tests here."""
    return PrivateCa(tmp_path_factory.mktemp("ca"))


# --------------------------------------------------------------------------- a client as small as can be


def wait(sock: socket.socket, waits_for: str) -> None:
    """Wait until the socket is ready."""
    readable = [sock] if waits_for == "read" else []
    writable = [sock] if waits_for == "write" else []
    assert any(select.select(readable, writable, [], PATIENCE_S))


def open_all(opening: Opening, sock: socket.socket) -> TlsStream | None:
    """Advance until the server is reached."""
    while (waits_for := opening.advance()) != "done":
        wait(sock, waits_for)
    return opening.stream


@contextmanager
def connected(route: Route) -> Iterator[tuple[socket.socket, TlsStream | None]]:
    """A non-blocking socket that reached the server, with its TLS."""
    # The worker gets its route in this form.
    route = msgspec.msgpack.decode(msgspec.msgpack.encode(route), type=Route)
    with socket.socket(route.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(route.address)
        sock.setblocking(False)
        stream = None
        if needs_opening(route):
            context = tls_context(route.transport) if route.tls else None
            stream = open_all(Opening(route, sock, context), sock)
        yield sock, stream


def write(sock: socket.socket, stream: TlsStream | None, data: bytes) -> None:
    """Send everything."""
    if stream is not None and data:
        stream.send(data)
    rest = memoryview(data) if stream is None else stream.pending()
    while rest:
        try:
            sent = sock.send(rest)
        except BlockingIOError:
            wait(sock, "write")
            continue
        rest = rest[sent:]
        if stream is not None:
            stream.written(sent)
            assert len(stream.pending()) == len(rest)


def read(sock: socket.socket, stream: TlsStream | None, until: Callable[[bytes], bool]) -> bytes:
    """Receive plaintext until there is enough, or the end."""
    plain = b""
    while not until(plain):
        try:
            data = sock.recv(4096)
        except BlockingIOError:
            wait(sock, "read")
            continue
        plain += data if stream is None else stream.receive(data)
        write(sock, stream, b"")
        if not data or (stream is not None and stream.ended):
            break
    return plain


def complete(url: Url, transport: Transport, times: int = 1) -> bytes:
    """Ask for completions on one connection, by the first route; returns the last answer."""
    answer = b""
    with connected(routes(url, transport)[0]) as (sock, stream):
        for _ in range(times):
            write(sock, stream, request_bytes("POST", "/v1/chat/completions", authority=url.authority, body=BODY))
            answer = read(sock, stream, lambda plain: plain.endswith(b"\r\n0\r\n\r\n"))
    return answer


def is_whole(answer: bytes) -> bool:
    """The answer came to its end."""
    return answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def failure(url: str, transport: Transport) -> OpeningFailed:
    """How the opening fails."""
    with pytest.raises(OpeningFailed) as failed:
        complete(parse_url(url), transport)
    return failed.value


# --------------------------------------------------------------------------- servers


def test_plain_http_needs_no_opening() -> None:
    """Such a socket is used as it is."""
    with plain_server() as server:
        url = parse_url(server.url)
        assert not needs_opening(routes(url, Transport())[0])
        assert is_whole(complete(url, Transport(), times=2))


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls(ca: PrivateCa, newest: ssl.TLSVersion) -> None:
    """A private authority, trusted by its file or not asked for; several requests on one connection."""
    with tls_server(ca, newest=newest, tokens=50) as server:
        url = parse_url(server.url)
        assert is_whole(complete(url, Transport(ca_file=ca.ca_file), times=3))
        assert is_whole(complete(url, Transport(insecure=True)))
    assert server.connections == 2
    assert len(server.heads) == 4


def test_tls_refuses_an_unknown_authority_and_a_wrong_name(ca: PrivateCa) -> None:
    """The message names what helps."""
    with tls_server(ca, names=("other.example",)) as server:
        unknown = failure(server.url, Transport())
        misnamed = failure(server.url, Transport(ca_file=ca.ca_file))
    for failed in (unknown, misnamed):
        assert failed.kind == "tls"
        assert "--ca-file" in failed.message
        assert "--insecure" in failed.message


def test_tls_with_a_client_certificate(ca: PrivateCa) -> None:
    """TLS 1.2 fails in the handshake without it, TLS 1.3 after it."""
    mine = Transport(ca_file=ca.ca_file, client_cert=ca.client_cert, client_key=ca.client_key)
    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with tls_server(ca, asks_for_certificate=True, newest=newest) as server:
            url = parse_url(server.url)
            assert is_whole(complete(url, mine))
            if newest == ssl.TLSVersion.TLSv1_2:
                assert "--client-cert" in failure(server.url, Transport(ca_file=ca.ca_file)).message
                continue
            with connected(routes(url, Transport(ca_file=ca.ca_file))[0]) as (sock, stream):
                assert read(sock, stream, bool) == b""
                assert stream is not None
                assert stream.ended
                assert "--client-cert" in stream.problem
                stream.send(b"too late")


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6 on this machine")
def test_ipv6(ca: PrivateCa) -> None:
    """Plain and with TLS."""
    with ipv6_server() as server:
        assert is_whole(complete(parse_url(server.url), Transport()))
    with tls_server(ca, family=socket.AF_INET6) as secure:
        assert is_whole(complete(parse_url(secure.url), Transport(ca_file=ca.ca_file)))


def test_a_unix_socket(ca: PrivateCa, tmp_path: Path) -> None:
    """Plain and with TLS; the certificate is checked for the URL's host."""
    plain, secure = (
        Transport(unix_socket=str(tmp_path / "a")),
        Transport(unix_socket=str(tmp_path / "b"), insecure=True),
    )
    with unix_server(tmp_path / "a") as server:
        assert not needs_opening(routes(parse_url(server.url), plain)[0])
        assert is_whole(complete(parse_url(server.url), plain))
    with unix_server(tmp_path / "b", context=ca.server_context("localhost")) as server:
        assert is_whole(complete(parse_url(server.url), secure))
        trusting = msgspec.structs.replace(secure, insecure=False, ca_file=ca.ca_file)
        assert is_whole(complete(parse_url(server.url), trusting))
        assert "not accepted" in failure("https://other", trusting).message


def test_a_proxy(ca: PrivateCa) -> None:
    """For plain HTTP and for TLS, with a login."""
    with connect_proxy(login="me:secret") as proxy:
        transport = Transport(proxy=proxy.url.replace("//", "//me:secret@"), ca_file=ca.ca_file)
        with plain_server() as server:
            assert is_whole(complete(parse_url(server.url), transport, times=2))
        with tls_server(ca) as secure:
            assert is_whole(complete(parse_url(secure.url), transport, times=2))
        without = failure(server.url, Transport(proxy=proxy.url))
        unreachable = failure(server.url, transport)
    assert (without.kind, unreachable.kind) == ("proxy", "proxy")
    assert "407" in without.message
    assert "502" in unreachable.message
    assert proxy.targets[0] == server.url.removeprefix("http://")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 403 No\r\n\r\n", "403"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1: 'SSH-2.0-OpenSSH'"),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 70000, "not HTTP/1.1"),
        (b"HTTP/1.1 200", "closed"),
    ],
)
def test_a_proxy_that_does_not_connect(answer: bytes, says: str) -> None:
    """Its answer is shown."""
    with connect_proxy(answer=answer) as proxy:
        failed = failure("https://127.0.0.1:9", Transport(proxy=proxy.url, insecure=True))
    assert failed.kind == "proxy"
    assert says in failed.message


# --------------------------------------------------------------------------- byte by byte, against a peer in this test


@contextmanager
def peers() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the near one does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            near.setblocking(False)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.settimeout(PATIENCE_S)
            yield near, far


def local_route(*, tls: bool, connect_request: bytes = b"") -> Route:
    """A route whose address is not used."""
    return Route(family=socket.AF_INET, address="", tls=tls, server_name="localhost", connect_request=connect_request)


class Far:
    """The server's end of TLS, which sends its bytes only when told."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def hear(self) -> None:
        """Take what the client has sent."""
        self.incoming.write(self.sock.recv(65536))

    def say(self, piece: int = 0) -> None:
        """Send all that TLS wants to send, or pieces of so many bytes."""
        data = self.outgoing.read()
        step = piece or len(data)
        for begin in range(0, len(data), step or 1):
            self.sock.sendall(data[begin : begin + step])


def opened_with_early_data(ca: PrivateCa, near: socket.socket, far_sock: socket.socket) -> tuple[Far, TlsStream]:
    """Agree on TLS 1.2 with a server that puts plaintext right behind its last word of the handshake."""
    far = Far(ca.server_context("localhost", newest=ssl.TLSVersion.TLSv1_2), far_sock)
    opening = Opening(local_route(tls=True), near, tls_context(Transport(ca_file=ca.ca_file)))
    for _ in range(2):
        assert opening.advance() == "read"
        far.hear()
        try:
            far.tls.do_handshake()
        except ssl.SSLWantReadError:
            far.say(piece=100)
            # Everything but the last bytes is there in any case.
            wait(near, "read")
            while opening.advance() == "read" and not select.select([far_sock], [], [], 0.05)[0]:
                pass
        else:
            break
    far.tls.write(b"early")
    far.say()
    stream = open_all(opening, near)
    assert stream is not None
    return far, stream


def test_plaintext_right_behind_the_handshake_is_kept(ca: PrivateCa) -> None:
    """It comes out in front of what is received next."""
    with peers() as (near, far_sock):
        far, stream = opened_with_early_data(ca, near, far_sock)
        far.tls.write(b" late")
        far.say()
        assert read(near, stream, lambda plain: len(plain) >= 10) == b"early late"


def test_ciphertext_in_any_pieces(ca: PrivateCa) -> None:
    """A record gives its plaintext with its last byte; several records in one read come out together."""
    with peers() as (near, far_sock):
        far, stream = opened_with_early_data(ca, near, far_sock)
        assert stream.receive(b"") == b"early"
        far.tls.write(b"x" * 1000)
        single = [stream.receive(memoryview(far.outgoing.read(1))) for _ in range(far.outgoing.pending)]
        assert single == [b""] * (len(single) - 1) + [b"x" * 1000]
        far.tls.write(b"one ")
        far.tls.write(b"two ")
        far.tls.write(b"z" * 40000)
        assert stream.receive(far.outgoing.read()) == b"one two " + b"z" * 40000
        assert not stream.ended


def test_the_end_of_tls(ca: PrivateCa) -> None:
    """The server's farewell ends the stream, behind the data before it."""
    with peers() as (near, far_sock):
        far, stream = opened_with_early_data(ca, near, far_sock)
        far.tls.write(b" last")
        with pytest.raises(ssl.SSLWantReadError):
            far.tls.unwrap()
        assert stream.receive(far.outgoing.read()) == b"early last"
        assert stream.ended
        assert stream.problem == ""
        assert stream.receive(b"") == b""


def test_broken_ciphertext(ca: PrivateCa) -> None:
    """It ends the stream with a problem; the plaintext before it is kept."""
    with peers() as (near, far_sock):
        _, stream = opened_with_early_data(ca, near, far_sock)
        assert stream.receive(b"no TLS at all, certainly") == b"early"
        assert stream.ended
        assert "TLS" in stream.problem
        assert stream.pending()


def test_more_than_the_socket_takes(ca: PrivateCa) -> None:
    """A long request goes out in pieces while the server reads slowly."""
    request = bytes(range(256)) * 20000
    with peers() as (near, far_sock):
        far, stream = opened_with_early_data(ca, near, far_sock)
        heard = bytearray()

        def listen() -> None:
            while len(heard) < len(request):
                far.hear()
                while far.incoming.pending:
                    try:
                        heard.extend(far.tls.read(65536))
                    except ssl.SSLWantReadError:
                        break

        listener = threading.Thread(target=listen)
        listener.start()
        write(near, stream, request)
        listener.join(PATIENCE_S)
    assert heard == request
    assert not stream.pending()


def told(server: subprocess.Popen[bytes], words: str) -> None:
    """Wait until the server's output has a line with `words`."""
    assert server.stdout is not None
    for line in server.stdout:
        if words.encode() in line:
            return
    pytest.fail(f"the server never said {words}")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command on this machine")
@pytest.mark.parametrize(("version", "command"), [("-tls1_3", b"K\n"), ("-tls1_2", b"r\n")])
def test_a_server_that_wants_new_keys(ca: PrivateCa, tmp_path: Path, version: str, command: bytes) -> None:
    """A key update, or a second handshake in the middle of TLS 1.2: what is sent meanwhile arrives afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    argv = ["openssl", "s_server", version, "-accept", f"127.0.0.1:{port}", "-cert", ca.issue("127.0.0.1", tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            told(server, "ACCEPT")
            url = parse_url(f"https://127.0.0.1:{port}")
            with connected(routes(url, Transport(ca_file=ca.ca_file))[0]) as (sock, stream):
                assert stream is not None
                write(sock, stream, b"first\n")
                told(server, "first")
                server.stdin.write(command)
                wait(sock, "read")
                assert stream.receive(sock.recv(65536)) == b""
                write(sock, stream, b"second\n")
                both = [sock.fileno(), server.stdout.fileno()]
                while both[1] not in select.select(both, [], [], PATIENCE_S)[0]:
                    assert stream.receive(sock.recv(65536)) == b""
                    write(sock, stream, b"")
                told(server, "second")
                server.stdin.write(b"answer\n")
                assert read(sock, stream, lambda plain: plain.endswith(b"\n")) == b"answer\n"
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("answer", "says"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "http://"), (b"", "closed the connection")]
)
def test_tls_meets_something_else(answer: bytes, says: str) -> None:
    """A server that speaks no TLS is told from one that closes."""
    with peers() as (near, far):
        opening = Opening(local_route(tls=True), near, tls_context(Transport()))
        assert opening.advance() == "read"
        far.recv(65536)
        far.sendall(answer)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(OpeningFailed, match=says) as failed:
            open_all(opening, near)
    assert failed.value.kind == "tls"


@pytest.mark.parametrize(("tls", "kind"), [(True, "tls"), (False, "proxy")])
def test_a_connection_that_breaks_while_it_is_opened(tls: bool, kind: str) -> None:
    """The message says in which step."""
    with peers() as (near, far):
        opening = Opening(
            local_route(tls=tls, connect_request=b"" if tls else b"CONNECT"), near, tls_context(Transport())
        )
        assert opening.advance() == "read"
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        with pytest.raises(OpeningFailed, match="broke") as failed:
            open_all(opening, near)
    assert failed.value.kind == kind


def test_bytes_behind_the_answer_of_the_proxy_stay_in_the_socket() -> None:
    """They are the server's, and keep the kernel's receive time."""
    with peers() as (near, far):
        opening = Opening(local_route(tls=False, connect_request=b"CONNECT h:1 HTTP/1.1\r\n\r\n"), near, None)
        assert opening.advance() == "read"
        assert far.recv(65536) == b"CONNECT h:1 HTTP/1.1\r\n\r\n"
        for byte in b"HTTP/1.1 200 Fine\r\nVia: x\r\n\r":
            far.sendall(bytes([byte]))
            wait(near, "read")
            assert opening.advance() == "read"
        far.sendall(b"\nHTTP/1.1 200 OK\r\n")
        assert open_all(opening, near) is None
        assert near.recv(100) == b"HTTP/1.1 200 OK\r\n"


def test_a_proxy_that_reads_slowly() -> None:
    """What it does not take at once goes out later."""
    request = b"x" * 20_000_000
    with peers() as (near, far):
        opening = Opening(local_route(tls=False, connect_request=request), near, None)
        assert opening.advance() == "write"
        assert opening.advance() == "write"
        left = len(request)
        while left:
            left -= len(far.recv(1 << 20))
            opening.advance()
        far.sendall(b"HTTP/1.0 200\r\n\r\n")
        assert open_all(opening, near) is None


def test_a_stream_is_freed_without_the_collector(ca: PrivateCa) -> None:
    """The load worker runs with the collector off."""
    with peers() as (near, far_sock):
        _, stream = opened_with_early_data(ca, near, far_sock)
        inner = weakref.ref(stream._tls)
        gc.disable()
        try:
            del stream
            assert inner() is None
        finally:
            gc.enable()


def test_a_plain_load_does_not_wait_for_ssl_or_numpy() -> None:
    """The worker's start-up counts."""
    code = "import sys, servetune.loadgen.transport; print(sorted({'ssl', 'numpy', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --------------------------------------------------------------------------- names


def test_a_name_without_an_address() -> None:
    """The kind is that of a request's record."""
    with pytest.raises(ResolveFailed) as failed:
        routes(Url(host="fe80::1%no-such-card", port=80, path=""), Transport())
    assert failed.value.kind == "dns"
    assert "fe80::1%no-such-card" in failed.value.message


def test_only_the_name_of_the_proxy_is_looked_up() -> None:
    """The proxy looks up the server's name."""
    transport = Transport(proxy="http://me:secret@127.0.0.1:9")
    (route,) = routes(parse_url("https://no-such-host.invalid/v1"), transport)
    assert (route.address, route.tls, route.server_name) == (("127.0.0.1", 9), True, "no-such-host.invalid")
    assert route.connect_request.startswith(b"CONNECT no-such-host.invalid:443 HTTP/1.1\r\n")


def test_of_several_routes_the_one_that_accepts_is_first() -> None:
    """None is lost; where none accepts, the order stays."""
    with plain_server() as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (alive,) = routes(parse_url(server.url), Transport())
        dead = msgspec.structs.replace(alive, address=closed.getsockname())
        assert accepting_first((dead, alive)) == (alive, dead)
        assert accepting_first((alive, dead)) == (alive, dead)
        assert accepting_first((dead, dead)) == (dead, dead)


def test_a_name_leads_to_the_family_that_listens() -> None:
    """Whatever the order in which the name gives its addresses."""
    families = [socket.AF_INET, socket.AF_INET6] if HAS_IPV6 else [socket.AF_INET]
    for family in families:
        with plain_server(family=family) as server:
            found = routes(Url(host="localhost", port=parse_url(server.url).port, path=""), Transport())
            if family in {route.family for route in found}:
                assert found[0].family == family
            assert len(set(found)) == len(found)


def test_transports_that_cannot_be() -> None:
    """The message names the option."""
    url = parse_url("http://127.0.0.1:9")
    for transport in (Transport(proxy="ftp://x"), Transport(unix_socket=""), Transport(proxy="x", unix_socket="y")):
        with pytest.raises(UserError, match="--"):
            routes(url, transport)
    with pytest.raises(UserError, match="--ca-file"):
        routes(parse_url("https://127.0.0.1:9"), Transport(ca_file="/no/such/file"))
