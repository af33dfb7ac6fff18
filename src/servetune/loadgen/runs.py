"""Runs of messages that are alike but for one text, read together: most of a usual stream.

A server writes the same bytes around each token. The text of each message of a run is cut out by its position; that
the run is what it seems is then proved by writing it again and comparing all of its bytes with those that came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from servetune.loadgen.dialects import ChunkReader
from servetune.records import EVENT_CHOICES, EVENT_OUTPUT, EVENT_ROLE

LONGEST = 64
"""Messages that are read together, so that little of a body is in memory once more."""
SHORTEST = 4
"""Fewer messages are read one by one."""
_STAYS_SINGLE = 8
"""A run that is shorter gives reason to wait before the next attempt."""
_LONGEST_WAIT = 64
_MOST_PLACES = 8
"""Texts of a message that are tried."""
_LONGEST_SEARCHED_BYTES = 16 * 1024
_TEXT = re.compile(rb'"(?:text|content|reasoning|reasoning_content)": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')
_RUNNING = EVENT_CHOICES | EVENT_ROLE | EVENT_OUTPUT
_decode_texts = msgspec.json.Decoder(list[str]).decode


class Frame:
    """The bytes around the text of each message of a run, and what they mean."""

    __slots__ = ("before", "behind", "flags", "flags_if_empty", "has_visible_text")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self.before = before
        self.behind = behind
        self.flags = 0
        self.flags_if_empty = 0
        self.has_visible_text = False

    def fits(self, piece: bytes) -> bool:
        """Tell whether `piece` is these bytes around some other ones."""
        return (
            piece.startswith(self.before)
            and piece.endswith(self.behind)
            and len(piece) >= len(self.before) + len(self.behind)
        )

    def learn(self, data_at: int, tail: int) -> bool:
        """Find out what a message of this frame means; False: it is none that may stand in a run.

        The place is the inside of a string that is the value of a key which is not `object`, so a text can change the
        meaning only by being empty or not; both are tried.
        """
        begin = self.before[data_at:]
        end = self.behind[: len(self.behind) - tail]
        full, empty = ChunkReader(), ChunkReader()
        full.take(begin + b"q" + end)
        empty.take(begin + end)
        self.flags = full.flags[0]
        self.flags_if_empty = empty.flags[0]
        self.has_visible_text = full.texts == ["q"] and not empty.texts
        is_text = self.has_visible_text or not (full.texts or empty.texts)
        return is_text and not (self.flags | self.flags_if_empty) & ~_RUNNING


class RunFinder:
    """Takes runs from the pieces of a stream; each ends with `tail`, and `glue` stands between them in the body."""

    def __init__(self, reader: ChunkReader, body: bytes, pieces: Sequence[bytes], tail: bytes, glue: bytes) -> None:
        self._reader = reader
        self._body = body
        self._pieces = pieces
        self._tail = tail
        self._lines = tail.count(b"\n")
        self._glue = glue
        self._known: Frame | None = None
        """Frame of the last run."""
        self._most = LONGEST
        self._wait = 1
        self._at = 0
        self._offset = 0
        """Where piece `_at` begins in the body."""

    def take_runs(self, at: int) -> tuple[int, int]:
        """Hand the runs from piece `at` on to the reader.

        Returns the first piece that is in none, and the one before which no further run is to be looked for.
        """
        while at + SHORTEST <= len(self._pieces):
            taken = self._take_run(at)
            at += taken
            if taken >= _STAYS_SINGLE:
                self._wait = 1
                continue
            next_try = at + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            if next_try + SHORTEST <= len(self._pieces):
                return at, next_try
            break
        return at, len(self._pieces)

    def _take_run(self, at: int) -> int:
        """Hand the run that begins with piece `at` to the reader; returns its pieces, 0 if there is none."""
        frame = self._frame(at)
        if frame is None:
            return 0
        passed = self._pieces[self._at : at]
        self._offset += sum(map(len, passed)) + len(self._glue) * len(passed)
        self._at = at
        texts = self._texts(frame)
        if not _hand_over(self._reader, frame, texts):
            self._most = max(_STAYS_SINGLE, len(texts) // 4)
            return 0
        return len(texts)

    def _frame(self, at: int) -> Frame | None:
        """Return the frame that piece `at` and the two behind it have in common."""
        pieces = self._pieces
        piece, *next_ones = pieces[at : at + 3]
        known = self._known
        if known is not None and known.fits(piece) and all(map(known.fits, next_ones)):
            return known
        if not (piece.startswith(b"data:") and piece.endswith(self._tail) and piece.count(b"\n") == self._lines):
            return None
        data_at = 6 if piece.startswith(b"data: ") else 5
        for found in islice(_TEXT.finditer(piece, 0, _LONGEST_SEARCHED_BYTES), _MOST_PLACES):
            begin, end = found.span(1)
            frame = Frame(piece[:begin], piece[end:])
            if all(map(frame.fits, next_ones)):
                self._known = frame if frame.learn(data_at, len(self._tail)) else None
                return self._known
        return None

    def _texts(self, frame: Frame) -> list[bytes]:
        """Return the texts of the pieces from the present one on that have this frame."""
        pieces, at = self._pieces, self._at
        stop = _last(lambda number: frame.fits(pieces[number]), at + 2, min(len(pieces), at + self._most)) + 1
        begin, end = len(frame.before), -len(frame.behind)
        texts = [piece[begin:end] for piece in pieces[at:stop]]
        between = frame.behind + self._glue + frame.before
        # The first piece begins and the last one ends as the frame does; this is all between.
        if self._body.startswith(between.join(texts), self._offset + begin):
            self._most = min(LONGEST, 2 * self._most)
            return texts
        taken = next(number for number in range(at, stop) if not frame.fits(pieces[number])) - at
        # So that the work stays in proportion to the messages, whatever comes.
        self._most = max(_STAYS_SINGLE, 2 * taken)
        return texts[:taken]


def _hand_over(reader: ChunkReader, frame: Frame, texts: list[bytes]) -> bool:
    """Give messages with these texts to the reader, unless one of them is not the inside of a JSON string."""
    joined = b"".join(texts)
    if _SPECIAL.search(joined):
        strings = _strings(texts)
        if strings is None:
            return False
    else:
        strings = [joined.decode()]
    flags = [frame.flags] * len(texts)
    if frame.flags_if_empty != frame.flags:
        for number, text in enumerate(texts):
            if not text:
                flags[number] = frame.flags_if_empty
    reader.take_alike(flags, strings if frame.has_visible_text else [])
    return True


def _strings(texts: list[bytes]) -> list[str] | None:
    """Decode the insides of JSON strings; None: one of them is none."""
    joined = b"\n".join(texts)
    # Without escaped backslashes and quotes, a quote that is left would end its string early. Where there is none, each
    # text is inside of one string of the array below, whole but for a raw line end, which makes one string more.
    bare = joined.replace(rb"\\", b"--").replace(rb"\"", b"--")
    if b'"' in bare:
        return None
    try:
        strings = _decode_texts(b'["' + joined.replace(b"\n", b'","') + b'"]')
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return strings if len(strings) == len(texts) else None


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number below `high` for which `holds` is true; it is for `low`, and soon for no later one."""
    if holds(high - 1):
        return high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
