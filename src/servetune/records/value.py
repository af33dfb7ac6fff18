"""The base of all records and the type of an option's value."""

from __future__ import annotations

import msgspec

OptionValue = bool | int | float | str
"""The value of one engine option."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every value that crosses a module or file boundary."""
