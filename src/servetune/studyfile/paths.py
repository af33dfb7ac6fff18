"""Names in a study file that may be paths: weights, tokenizers, data files, programs. Relative ones start at the file.

The only part of the study file's package that looks at the file system beside the file itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from servetune.studyfile.reading import Context, shown

_LONGEST_PATH = 4096
_HUB_NAME = re.compile(r"[\w.@:+-]+(/[\w.@:+-]+)*")


def absolute(text: str, folder: Path) -> str:
    """Return `text` as an absolute path, relative to `folder`, with ~ replaced where there is such a home."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        path = Path(text)
    return os.path.normpath(folder.absolute() / path)


def looks_like_path(text: str) -> bool:
    """Tell whether `text` can only be meant as a path, and not as the name of a model on the hub."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..") or text.lower().endswith(".gguf")


def weights(text: str, place: str, context: Context) -> str:
    """Return the absolute path of a model or tokenizer, or its hub name; what is neither is a mistake."""
    path = absolute(text, context.folder)
    if Path(path).exists():
        return path
    if looks_like_path(text):
        context.mistakes.add(
            place,
            f"there is no file or folder {shown(path, longest=_LONGEST_PATH)}",
            "relative paths start at the study file",
        )
    elif not _HUB_NAME.fullmatch(text):
        context.mistakes.add(place, f"{shown(text)} is neither a path nor the name of a model on the hub")
    return text


def data_file(text: str, place: str, context: Context) -> str:
    """Return the absolute path of a data file; one that is not there is a mistake."""
    path = absolute(text, context.folder)
    if not Path(path).is_file():
        context.mistakes.add(
            place, f"there is no file {shown(path, longest=_LONGEST_PATH)}", "relative paths start at the study file"
        )
    return path


def program(text: str, folder: Path) -> str:
    """Return a program as an absolute path if it is given as a path, else its name, to be found on PATH."""
    return absolute(text, folder) if "/" in text or text.startswith("~") else text
