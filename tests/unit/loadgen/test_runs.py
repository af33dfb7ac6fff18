"""Runs of like events whose texts are no insides of JSON strings, alone and in pairs that make up for each other."""

from __future__ import annotations

from itertools import product

import pytest

from servetune.loadgen.sse import decode, split_events
from servetune.records import EVENT_CHOICES, EVENT_CONTENT, EVENT_EMPTY

TEXTS = [
    b'"',
    b"\\",
    b'a","b',
    b'\\","',
    b"a\nb",
    b"a\r\nb",
    b"\\\\",
    b'\\"',
    b'\\\\"',
    b"\x01",
    b"\\x",
    b"\\ud83d",
    b"",
    b"\\n",
    b',"z',
]


def event(text: bytes) -> bytes:
    """A message with this between the quotes of its text."""
    return b'data: {"choices":[{"text":"' + text + b'"}]}\n\n'


@pytest.mark.parametrize(("first", "second"), list(product(TEXTS, TEXTS)))
def test_no_pair_of_texts_deceives(first: bytes, second: bytes) -> None:
    """The texts stand in the middle of a run, in either order, and each event means what it means alone."""
    for distance in (0, 1):
        events = [event(b" a")] * 4 + [event(first)] + [event(b" b")] * distance + [event(second)] + [event(b" c")] * 4
        body = b"".join(events)
        singles = [decode([b"data: " + data + b"\n\n"], [1], keep_text=True) for _, data in split_events(body)]
        for parts in (events, [body]):
            stream = decode(parts, [len(parts)], keep_text=True)
            assert stream.flags == tuple(flags for single in singles for flags in single.flags)
            assert stream.text == "".join(single.text for single in singles)
            assert stream.fault == next((single.fault for single in singles if single.fault), None)


def test_runs_longer_than_one_look() -> None:
    """Thousands of events, with another frame now and then and an empty text here and there."""
    texts = [b"" if at % 7 == 3 else b" t" for at in range(5000)]
    events = [event(text) if at % 1500 else b'data: {"choices":[]}\n\n' for at, text in enumerate(texts)]
    stream = decode(events, list(range(1, 5001)), keep_text=True)
    expected = [
        EVENT_CHOICES | (EVENT_CONTENT if text else EVENT_EMPTY) if at % 1500 else 0 for at, text in enumerate(texts)
    ]
    assert list(stream.flags) == expected
    assert stream.text == " t" * sum(flags == EVENT_CHOICES | EVENT_CONTENT for flags in expected)
    assert stream.reads == tuple(range(5000))


def test_a_text_elsewhere_is_none_of_the_answer() -> None:
    """Events that differ only in a field that nobody reads."""
    events = [b'data: {"choices":[],"note":{"text":"%d"}}\n\n' % at for at in range(12)]
    stream = decode(events, [12], keep_text=True)
    assert (stream.flags, stream.text, stream.fault) == ((0,) * 12, "", None)
