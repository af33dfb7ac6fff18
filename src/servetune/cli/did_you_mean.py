"""The name that was probably meant: for commands and flags. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 0.55


def nearest(word: str, names: Iterable[str], *, same: dict[str, str] | None = None) -> str | None:
    """Return the one of `names` that `word` was probably meant to be; None where none is alike.

    `same` knows words of other programs that mean one of the names.
    """
    known = list(names)
    if same and same.get(word) in known:
        return same[word]
    # The dashes, which all flags share, would make any two alike.
    bare = {name.lstrip("-"): name for name in known}
    given = word.lstrip("-")
    alike = difflib.get_close_matches(given, bare, n=1, cutoff=_ALIKE)
    if alike:
        return bare[alike[0]]
    return min((name for name in known if len(given) > 2 and given in name), key=len, default=None)
