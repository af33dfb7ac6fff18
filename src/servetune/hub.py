"""Files of the Hugging Face hub by name: fetched into the hub's own cache, or taken from it when there is no network.

The only module that talks to the hub. Knows what a repository is, not what is in it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from servetune.errors import HostProblem, UserError

_REACHABLE_S = 5.0
_NEVER_NEEDED = ("original/*", "*.pth", "*.onnx", "*.h5", "*.msgpack")
"""Further copies of weights that some repositories hold beside safetensors."""


def fetch_file(repository: str, file: str, *, remedy: str, is_data_set: bool = False) -> Path:
    """Return the local path of one file of a repository.

    Raises UserError if the hub has no such file, HostProblem (which ends with `remedy`) if it cannot be reached.
    """
    import huggingface_hub  # noqa: PLC0415  # slow to import, and needed for few commands

    kind = "dataset" if is_data_set else "model"
    with _explained(f"{repository}/{file}", remedy):
        offline = not is_reachable()
        path = huggingface_hub.hf_hub_download(repository, file, repo_type=kind, local_files_only=offline)
        return Path(path)


def fetch_all(repository: str, *, remedy: str) -> Path:
    """Return the local folder of a whole model repository; raises as fetch_file.

    A repository of many GGUF files is refused with UserError: fetching all its quantisations is never meant.
    """
    import huggingface_hub  # noqa: PLC0415

    with _explained(repository, remedy):
        offline = not is_reachable()
        if not offline:
            refuse_many_variants(repository, huggingface_hub.list_repo_files(repository))
        path = huggingface_hub.snapshot_download(
            repository, local_files_only=offline, ignore_patterns=list(_NEVER_NEEDED)
        )
        return Path(path)


def refuse_many_variants(repository: str, files: list[str]) -> None:
    """Raise UserError, which names one of them, for a repository of GGUF files alone."""
    variants = sorted(name for name in files if name.endswith(".gguf"))
    if variants and not any(name.endswith(".safetensors") for name in files):
        raise UserError(repository, "holds several GGUF files", f"choose one: {repository}/{variants[0]}, ...")


def is_reachable() -> bool:
    """Tell whether the hub's host takes a connection now; with a proxy this cannot be seen, and the answer is True."""
    import urllib.parse  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415  # heavy, and most tokenizers are local

    from huggingface_hub import constants  # noqa: PLC0415

    if constants.HF_HUB_OFFLINE:
        return False
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies().get(address.scheme):
        return True
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_REACHABLE_S):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _explained(where: str, remedy: str) -> Iterator[None]:
    """Turn the library's errors into ours, and keep its own messages and progress bars off the terminal."""
    from huggingface_hub import errors  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    # The library has changed its HTTP package before; its own error always derives from that package's.
    transport = cast("tuple[type[Exception], ...]", (OSError, *errors.HfHubHTTPError.__bases__))
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        raise HostProblem(f"{where} is not on this machine and the hub cannot be reached ({remedy})") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        raise UserError(where, "is not on the hub", "check the name; a private one needs HF_TOKEN") from error
    except transport as error:
        raise HostProblem(f"{where} could not be fetched from the hub: {error} ({remedy})") from error
