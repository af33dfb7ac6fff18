"""Raw HTTP answers: what servers send, what they should not send, and damaged forms of both."""

from __future__ import annotations

from random import Random

_TEXTS = [
    b" the",
    b" a",
    b"",
    b"\\n",
    b'\\"x\\"',
    b"\xc3\xa4",
    b"\xf0\x9f\x98\x80",
    b"\\ud83d\\ude00",
    b"\\ud83d",
    b"data: ",
    b"q",
]
_SPOILERS = [
    b'"',
    b"\\",
    b"\xff",
    b"\x00",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"}",
    b"[",
    b"[DONE]",
    b"data:",
    b":",
    b"0\r\n",
    b"-1",
    b"\xef\xbb\xbf",
]
_SINGLES = [
    b"[DONE]",
    b" [DONE] ",
    b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":1}}}',
    b'{"choices":[{"index":0,"text":"","finish_reason":"length"}]}',
    b'{"choices":[{"delta":{"role":"assistant","content":""}}]}',
    b'{"choices":[{"delta":{},"finish_reason":"abort"}]}',
    b'{"error":{"message":"boom"}}',
    b'{"object":"error","message":"boom"}',
    b'{"usage":{"completion_tokens":1' + b"0" * 30 + b"}}",
    b'{"id":' + b"[" * 2000 + b"}",
    b'{"choices":null}',
    b"{broken",
    b"null",
    b"",
]
_FRAMES = [
    (b'{"id":"c","choices":[{"index":0,"text":"', b'","finish_reason":null}],"usage":null}'),
    (b'{"id":"c","choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":null}],"created":%d}'),
    (b'{"choices": [{"delta": {"content": null, "reasoning_content": "', b'"}}]}'),
    (b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"', b'"}}]}}]}'),
    (b'{"choices":[{"text":"', b'"}],"usage":{"prompt_tokens":3,"completion_tokens":%d}}'),
    (b'{"text":"', b'","meta_info":{"prompt_tokens":3,"completion_tokens":%d,"finish_reason":null}}'),
    (b'{"content":"', b'"}'),
    (b'{"object":"', b'","choices":[]}'),
]
_WHOLE = [
    b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}',
    b'{"choices":[{"text":"Hi","finish_reason":"length"}]}',
    b'{"text":"Hi","meta_info":{"completion_tokens":2,"finish_reason":{"type":"length"}}}',
    b'{"error":"boom"}',
    b"",
]
_HEADS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\n",
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\n",
    b"HTTP/1.1 204 No Content\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n",
    b"HTTP/2 200\r\n",
    b"no head\r\n",
]


def answer(random: Random) -> bytes:
    """Return one answer; most are sound HTTP, and about a third is damaged afterwards."""
    body = random.choice(_WHOLE) if random.random() < 0.1 else _events(random)
    raw = _framed(random, body)
    return damaged(random, raw) if random.random() < 0.35 else raw


def damaged(random: Random, raw: bytes) -> bytes:
    """Return `raw` with a few bytes or pieces lost, doubled, swapped or put in."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(raw) + 1)
        far = min(len(raw), at + random.randint(0, 12))
        way = random.randrange(5)
        if way == 0:
            raw = raw[:at]
        elif way == 1:
            raw = raw[:at] + raw[far:]
        elif way == 2:
            raw = raw[:far] + raw[at:]
        elif way == 3:
            raw = raw[:at] + bytes([random.randrange(256)]) + raw[at + 1 :]
        else:
            raw = raw[:at] + random.choice(_SPOILERS) + raw[at:]
    return raw


def cut(random: Random, raw: bytes) -> list[bytes]:
    """Return `raw` in pieces: a few, or each byte alone."""
    if random.random() < 0.05:
        return [raw[at : at + 1] for at in range(len(raw))]
    edges = sorted(random.randrange(len(raw) + 1) for _ in range(random.randint(1, 6)))
    return [raw[begin:end] for begin, end in zip([0, *edges], [*edges, len(raw)], strict=True)]


def _events(random: Random) -> bytes:
    end = random.choice([b"\n", b"\n", b"\n", b"\n", b"\r\n", b"\r"])
    field = random.choice([b"data: ", b"data: ", b"data: ", b"data:", b"event: x" + end + b"data: "])
    messages: list[bytes] = []
    for _ in range(random.randint(0, 3)):
        if random.random() < 0.4:
            messages.append(random.choice(_SINGLES))
            continue
        before, behind = random.choice(_FRAMES)
        for at in range(random.choice([1, 2, 4, 6, 9])):
            text = random.choice(_TEXTS) if random.random() < 0.97 else random.choice(_SPOILERS)
            messages.append(before + text + (behind % at if b"%d" in behind else behind))
    body = b"".join([field + message + end + end for message in messages])
    if random.random() < 0.1:
        body = random.choice([b": ping" + end + end, end, b"\xef\xbb\xbf", b'error: {"code":1}' + end + end]) + body
    return body[: len(body) - random.randint(1, 3)] if random.random() < 0.1 else body


def _framed(random: Random, body: bytes) -> bytes:
    head = _HEADS[0] if random.random() < 0.7 else random.choice(_HEADS)
    way = random.random()
    if way < 0.6:
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + _chunks(random, body)
    if way < 0.8:
        size = len(body) if random.random() < 0.8 else random.randrange(len(body) + 5)
        return head + b"Content-Length: %d\r\n\r\n" % size + body
    return head + b"\r\n" + body


def _chunks(random: Random, body: bytes) -> bytes:
    if random.random() < 0.6:
        pieces = [piece + b"\n\n" for piece in body.split(b"\n\n")]
        pieces[-1] = pieces[-1][:-2]
    else:
        pieces = cut(random, body) if random.random() < 0.8 else [body]
    chunks = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece])
    last = random.random()
    if last < 0.8:
        return chunks + b"0\r\n\r\n"
    return chunks + random.choice([b"", b"0\r\n", b"0\r\nTrailer: x\r\n\r\n", b"0\r\n\r\nHTTP/1.1 500 No\r\n\r\nmore"])
