"""Secrets never reach a log, a store or a report: they are masked here, by name and by place.

Pure: from a command or a URL to the same with `***` in place of each secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.records import Command

MASK = "***"
_SECRET_NAME = re.compile(
    r"(api[-_]?key|subscription[-_]key|token$|secret|passw(or)?d|credential|auth(orization)?$|^(set-)?cookie$)",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"(max|num|batch|min|kv|per)[-_a-z]*tokens?$", re.IGNORECASE)
_PROXY_NAME = re.compile(r"proxy$", re.IGNORECASE)
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9_-]+)(?P<mark>\s*[=:]\s*)(?P<value>.+)", re.DOTALL)
# A password may hold @ and even / by mistake: everything up to the last @ goes.
_URL_LOGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?:[^/\s]*|[^/\s:@\[]*:(?!\d*[/?#])[^\s\"']*)@", re.IGNORECASE
)
_URL_QUERY = re.compile(
    r"(?P<name>[?&](?:api[-_]?key|key|token|access_token|secret|password|sig)=)[^&\s]+", re.IGNORECASE
)
_AUTHORIZATION = re.compile(
    r"(?P<name>authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|digest|negotiate|token|api-?key)\s+)?)[^\s\"']+",
    re.IGNORECASE,
)
_API_KEY = re.compile(
    r"(?P<name>-api[-_]?key\s+(?=[^\s-])|api[-_]?key[\"']?\s*[:=]\s*[\"']?)[^\s\"',&}\])]+", re.IGNORECASE
)
_BEARER = re.compile(r"(?P<word>bearer\s+)[^\s\"']+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or header of this name usually holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def mask_text(text: str) -> str:
    """Mask logins and keys in URLs, authorisation and API keys in headers and options anywhere in `text`."""
    masked = _URL_LOGIN.sub(rf"\g<scheme>{MASK}@", text)
    masked = _URL_QUERY.sub(rf"\g<name>{MASK}", masked)
    masked = _AUTHORIZATION.sub(rf"\g<name>{MASK}", masked)
    masked = _API_KEY.sub(rf"\g<name>{MASK}", masked)
    return _BEARER.sub(rf"\g<word>{MASK}", masked)


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of headers that hold secrets."""
    return {name: _mask_value(name, value) for name, value in headers.items()}


def mask_proxy(address: str) -> str:
    """Mask the login of a proxy's address, which may lack its scheme."""
    login, at, host = address.rpartition("@")
    scheme = login[: login.find("://") + 3] if "://" in login else ""
    return f"{scheme}{MASK}@{host}" if at else address


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of variables that hold secrets."""
    return {name: _mask_value(name, value) for name, value in env.items()}


def mask_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Mask the values of flags that hold secrets, as `--flag value` and as `--flag=value`, and of
    secret headers and variables as NAME=VALUE.
    """
    masked: list[str] = []
    flag = ""
    for argument in argv:
        if argument.startswith("--") or (argument.startswith("-") and not is_secret_name(flag)):
            flag, equals, value = argument.partition("=")
            masked.append(f"{flag}={_mask_argument(flag, value)}" if equals else mask_text(argument))
            flag = "" if equals and not _takes_headers(flag) else flag
        else:
            masked.append(_mask_argument(flag, argument))
            # A flag has one value; those that take headers may have several.
            flag = flag if _takes_headers(flag) else ""
    return tuple(masked)


def _takes_headers(flag: str) -> bool:
    return flag == "-H" or flag.lstrip("-") in ("header", "headers")


def _mask_argument(flag: str, value: str) -> str:
    named = _NAMED.fullmatch(value)
    if named and not is_secret_name(flag) and (_takes_headers(flag) or "=" in named["mark"]):
        return f"{named['name']}{named['mark']}{_mask_value(named['name'], named['value'])}"
    return _mask_value(flag.lstrip("-"), value)


def _mask_value(name: str, value: str) -> str:
    if is_secret_name(name):
        return MASK
    return mask_proxy(value) if _PROXY_NAME.search(name) else mask_text(value)


def mask_command(command: Command) -> Command:
    """The same command, fit to be stored and shown."""
    return Command(argv=mask_argv(command.argv), env=mask_env(command.env))
