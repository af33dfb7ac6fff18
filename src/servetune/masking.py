"""Secrets never reach a log, a store or a report: they are masked here, by name and by place.

Pure: from a command or a URL to the same with `***` in place of each secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.records import Command

MASK = "***"
_SECRET_NAME = re.compile(r"(api[-_]?key|token$|secret|passw(or)?d|credential|auth(orization)?$)", re.IGNORECASE)
_NOT_SECRET = re.compile(r"(max|num|batch|min|kv|per)[-_a-z]*tokens?$", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s]+@", re.IGNORECASE)
_URL_QUERY = re.compile(
    r"(?P<name>[?&](?:api[-_]?key|key|token|access_token|secret|password|sig)=)[^&\s]+", re.IGNORECASE
)
_BEARER = re.compile(r"(?P<word>bearer\s+)\S+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or header of this name usually holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def mask_text(text: str) -> str:
    """Mask logins and keys in URLs and bearer tokens anywhere in `text`."""
    masked = _URL_LOGIN.sub(rf"\g<scheme>{MASK}@", text)
    masked = _URL_QUERY.sub(rf"\g<name>{MASK}", masked)
    return _BEARER.sub(rf"\g<word>{MASK}", masked)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of variables that hold secrets."""
    return {name: MASK if is_secret_name(name) else mask_text(value) for name, value in env.items()}


def mask_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Mask the values of flags that hold secrets, as `--flag value` and as `--flag=value`."""
    masked: list[str] = []
    value_is_secret = False
    for argument in argv:
        flag, equals, _ = argument.partition("=")
        names_secret = argument.startswith("-") and is_secret_name(flag.lstrip("-"))
        if value_is_secret and not argument.startswith("--"):
            masked.append(MASK)
        elif names_secret and equals:
            masked.append(f"{flag}={MASK}")
        else:
            masked.append(mask_text(argument))
        value_is_secret = names_secret and not equals
    return tuple(masked)


def mask_command(command: Command) -> Command:
    """The same command, fit to be stored and shown."""
    return Command(argv=mask_argv(command.argv), env=mask_env(command.env))
