"""Tokenizers whose every step can be followed by hand."""

from __future__ import annotations


class WordIds:
    """Each id is the word of its number: decode and encode are exact inverses."""

    def __init__(self, *, size: int = 1000, special: frozenset[int] = frozenset(), added: int = 0) -> None:
        self.base_vocab_size = size
        self.special_ids = special
        self.special_added = added

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """One id a word; another word than a number counts as 7."""
        ids = [int(word) if word.isdigit() else 7 for word in text.split()]
        return [0] * self.special_added * add_special + ids

    def decode(self, ids: list[int]) -> str:
        """The numbers, with spaces between."""
        return " ".join(map(str, ids))

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """One after the other."""
        return [self.encode(text) for text in texts]

    def decode_many(self, sequences: list[list[int]]) -> list[str]:
        """One after the other."""
        return [self.decode(ids) for ids in sequences]


class Merging(WordIds):
    """Encoding joins two equal neighbours into one id and writes every multiple of ten as two others."""

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Lengths change at the first round trip, then settle."""
        ids: list[int] = []
        for number in super().encode(text):
            if ids and ids[-1] == number:
                continue
            ids += [number + 1, number + 2] if number % 10 == 0 else [number]
        return ids
