"""The load client over every way to a server: TLS, Unix sockets, proxies, IPv6, connections that are not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servetune.records import EVENT_CONTENT, EVENT_REASONING, EVENT_TOOL, ClientFacts, RequestRecord, Transport
from tests.unit.loadgen.scripted import HEAD, LAST, Peer, event, load, serving
from tests.unit.loadgen.servers import (
    HAS_IPV6,
    PrivateCa,
    connect_proxy,
    ipv6_server,
    plain_server,
    tls_server,
    unix_server,
)

TOKENS = 3
REQUESTS = 12


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PrivateCa:
    """An authority that is in no system."""
    return PrivateCa(tmp_path_factory.mktemp("ca"))


def sent(url: str, folder: Path, **transport: str | bool) -> tuple[list[RequestRecord], ClientFacts]:
    """A closed loop of 12 requests in 3 slots."""
    ways = Transport(**transport)  # type: ignore[arg-type]
    records, facts, _ = load(url, folder / "out", REQUESTS, max_concurrency=3, transport=ways)
    return records, facts


def assert_whole(records: list[RequestRecord]) -> None:
    """Every answer came with all of its tokens and times, on connections that were used again."""
    assert [record.error for record in records] == [None] * REQUESTS
    assert {record.usage_output_tokens for record in records} == {TOKENS}
    for record in records:
        assert record.sent_ns is not None
        assert record.sent_done_ns is not None
        assert record.sent_ns <= record.sent_done_ns <= record.reads_ns[-1] + 1_000_000
        assert list(record.reads_ns) == sorted(record.reads_ns)
    assert sum(record.reused_connection for record in records) == REQUESTS - 3


def kinds(records: list[RequestRecord]) -> set[str | None]:
    """Kinds of the errors."""
    return {record.error.kind if record.error else None for record in records}


def test_tls(ca: PrivateCa, tmp_path: Path) -> None:
    """With the authority's file; receive times are still the kernel's."""
    with tls_server(ca) as server:
        records, facts = sent(server.url, tmp_path, ca_file=ca.ca_file)
        assert server.connections == 3
    assert_whole(records)
    assert facts.stamps == "kernel"


def test_tls_that_cannot_be_verified(ca: PrivateCa, tmp_path: Path) -> None:
    """Verification is on by default; only the user turns it off."""
    with tls_server(ca) as server:
        refused, facts = sent(server.url, tmp_path)
        assert kinds(refused) == {"tls"}
        assert facts.peak_open == 0
        assert all("certificate" in record.error.message for record in refused if record.error)
        accepted, _ = sent(server.url, tmp_path, insecure=True)
    assert_whole(accepted)


def test_tls_with_a_clients_certificate(ca: PrivateCa, tmp_path: Path) -> None:
    """A server that asks for one answers only who has it."""
    with tls_server(ca, asks_for_certificate=True) as server:
        whole, _ = sent(server.url, tmp_path, ca_file=ca.ca_file, client_cert=ca.both)
        without, _ = sent(server.url, tmp_path, ca_file=ca.ca_file)
    assert_whole(whole)
    assert kinds(without) == {"tls"}


def test_a_unix_socket(tmp_path: Path) -> None:
    """The kernel gives no receive times there, and the facts say so."""
    path = tmp_path / "s"
    with unix_server(path) as server:
        records, facts = sent(server.url, tmp_path, unix_socket=str(path))
    assert_whole(records)
    assert facts.stamps == "user"


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_proxy(ca: PrivateCa, tmp_path: Path, is_tls: bool) -> None:
    """It is asked to CONNECT once for each connection."""
    with connect_proxy(login="me:secret") as proxy, tls_server(ca) if is_tls else plain_server() as server:
        url = proxy.url.replace("://", "://me:secret@")
        records, _ = sent(server.url, tmp_path, proxy=url, ca_file=ca.ca_file)
        assert len(proxy.targets) == 3
    assert_whole(records)


def test_a_proxy_that_refuses(tmp_path: Path) -> None:
    """Its answer stands in each record; so does a proxy that is not there."""
    with connect_proxy(answer=b"HTTP/1.1 502 Bad Gateway\r\n\r\n") as proxy, plain_server() as server:
        refused, _ = sent(server.url, tmp_path, proxy=proxy.url)
        gone = proxy.url
    assert kinds(refused) == {"proxy"}
    assert all("502" in record.error.message for record in refused if record.error)
    with plain_server() as server:
        missing, _ = sent(server.url, tmp_path, proxy=gone)
    assert kinds(missing) == {"proxy"}


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_ipv6(tmp_path: Path) -> None:
    """An address in brackets."""
    with ipv6_server() as server:
        records, facts = sent(server.url, tmp_path)
    assert_whole(records)
    assert facts.stamps == "kernel"


def test_a_new_connection_for_each_request(tmp_path: Path) -> None:
    """Where the load asks for it; the server is told that it will not be kept."""
    with plain_server() as server:
        records, _, _ = load(server.url, tmp_path / "out", REQUESTS, max_concurrency=3, connections="new")
        assert server.connections == REQUESTS
        assert all(b"connection: close" in head.lower() for head in server.heads)
    assert [record.error for record in records] == [None] * REQUESTS
    assert not any(record.reused_connection for record in records)


def test_reasoning_and_tool_calls_are_output(tmp_path: Path) -> None:
    """TTFT is that of the first reasoning token."""
    deltas: tuple[dict[str, Any], ...] = (
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "yes"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
    )

    def script(peer: Peer, _: bytes) -> None:
        peer.send(HEAD, *[event({"choices": [{"delta": delta}]}) for delta in deltas], gap_s=0.01)
        peer.send(event('{"choices":[{"delta":{},"finish_reason":"stop"}]}'), event("[DONE]"), LAST)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 1)
    assert records[0].error is None
    shown = [flags & (EVENT_CONTENT | EVENT_REASONING | EVENT_TOOL) for flags in records[0].event_flags[:4]]
    assert shown == [0, EVENT_REASONING, EVENT_CONTENT, EVENT_TOOL]
