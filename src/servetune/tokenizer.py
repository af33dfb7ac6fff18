"""Tokenizers by the `tokenizers` library alone: from a folder, a tokenizer.json, a GGUF file, or a name of the hub.

A GGUF file's byte-level BPE is turned into a tokenizer.json once and kept in the cache. Knows no workload or engine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

from servetune import hub
from servetune.cache import cache_dir, entering_cache, file_digest
from servetune.errors import UserError
from servetune.gguf_file import GgufHead, read_head


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def base_vocab_size(self) -> int:
        """Number of ids of the vocabulary without added tokens."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens."""
        ...

    @property
    def special_added(self) -> int:
        """Number of special tokens that are added to one sequence."""
        ...

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Return the ids of `text`, with the special tokens of a sequence if asked for."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`; special tokens are kept."""
        ...

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        ...

    def decode_many(self, sequences: list[list[int]]) -> list[str]:
        """Return the text of each sequence of ids; special tokens are kept."""
        ...


class JsonTokenizer:
    """A tokenizer that is described by the text of a tokenizer.json."""

    def __init__(self, text: str, *, base_vocab_size: int | None = None) -> None:
        """Build it; raises ValueError if the library refuses the text."""
        import tokenizers  # noqa: PLC0415  # a native library that only some commands need

        try:
            self._inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for every refusal
            raise ValueError(str(error)) from error
        self._inner.no_padding()
        self._inner.no_truncation()
        added = self._inner.get_added_tokens_decoder()
        self.base_vocab_size: int = base_vocab_size or self._inner.get_vocab_size(with_added_tokens=False)
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self.special_added: int = self._inner.num_special_tokens_to_add(is_pair=False)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Return the ids of `text`, with the special tokens of a sequence if asked for."""
        return list(self._inner.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`; special tokens are kept."""
        return str(self._inner.decode(ids, skip_special_tokens=False))

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        # The fast form leaves out where each token stands, which nobody asks for here.
        return [list(found.ids) for found in self._inner.encode_batch_fast(texts, add_special_tokens=False)]

    def decode_many(self, sequences: list[list[int]]) -> list[str]:
        """Return the text of each sequence of ids; special tokens are kept."""
        return list(self._inner.decode_batch(sequences, skip_special_tokens=False))


def load(source: str) -> Tokenizer:
    """Load the tokenizer that `source` names: a model folder, a tokenizer.json, a GGUF file or a hub name.

    Raises UserError if there is none or it cannot be used, HostProblem if the hub cannot be reached.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path)
    if path.is_file():
        return _from_json_file(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not path.parent.is_dir():
        remedy = "connect to the network, or give a folder with a tokenizer.json"
        return _from_json_file(hub.fetch_file(source, "tokenizer.json", remedy=remedy))
    raise UserError(
        source, "there is no such tokenizer", "give a model folder, a tokenizer.json, a GGUF file or owner/name"
    )


def _from_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        fix = "give a folder with a tokenizer.json: set tokenizer in the study, or --tokenizer"
        raise UserError(str(folder), "has no tokenizer.json", fix)
    return _from_json_file(file)


def _from_json_file(file: Path) -> Tokenizer:
    try:
        return JsonTokenizer(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(str(file), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(str(file), f"is not a usable tokenizer: {error}", "fetch it again") from error


# --------------------------------------------------------------------------- from GGUF

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _splits(*patterns: str) -> list[dict[str, Any]]:
    """Return pre-tokenizers that cut at each pattern in turn."""
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]


PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": _splits(_GPT2_SPLIT),
    "smollm": _splits(r"\p{N}", _GPT2_SPLIT),
    "qwen2": _splits(_WORD_SPLIT.format(digits=r"\p{N}")),
    "llama-bpe": _splits(_WORD_SPLIT.format(digits=r"\p{N}{1,3}")),
    "default": _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""Name in `tokenizer.ggml.pre` -> how text is cut before merging, as llama.cpp does it."""
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_IGNORE_MERGES = frozenset({"llama-bpe"})
_BEGINS_WITH_BOS = frozenset({"llama-bpe"})
"""Pre-tokenizers whose vocabularies get a begin token where the file does not say."""

_NORMAL, _CONTROL, _BYTE = 1, 3, 6


def _from_gguf(path: Path) -> Tokenizer:
    head = read_head(path)
    name = _pre_tokenizer_name(head)
    size = _base_vocab_size(head)
    kept = cache_dir() / "tokenizers" / f"{_tokenizer_key(head)}.json"
    if not kept.is_file():
        with entering_cache(kept) as partial:
            partial.write_text(json.dumps(_description(head, name, size)), encoding="utf-8")
    try:
        return JsonTokenizer(kept.read_text(encoding="utf-8"), base_vocab_size=size)
    except (OSError, ValueError) as error:
        raise UserError(str(path), f"holds a tokenizer that cannot be used: {error}", _REMEDY) from error


_FORM = 1
"""Raised when _description changes, so that kept files of another form are not used."""
_REMEDY = "give the model's tokenizer.json: set tokenizer in the study, or --tokenizer"


def _tokenizer_key(head: GgufHead) -> str:
    return f"{file_digest(head.path)[:24]}-{_FORM}"


def _pre_tokenizer_name(head: GgufHead) -> str:
    """Return the name in PRE_TOKENIZERS; raises UserError for a tokenizer of another kind."""
    model = head.metadata.get("tokenizer.ggml.model")
    if model is None or not head.metadata.get("tokenizer.ggml.tokens"):
        raise UserError(str(head.path), "holds no tokenizer", _REMEDY)
    if model != "gpt2":
        raise UserError(str(head.path), f'its tokenizer is of the kind "{model}", which cannot be rebuilt', _REMEDY)
    given = str(head.metadata.get("tokenizer.ggml.pre", "default"))
    name = _ALIASES.get(given, given)
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UserError(str(head.path), f'its pre-tokenizer "{given}" is not known (known: {known})', _REMEDY)
    return name


def _token_types(head: GgufHead) -> list[int]:
    return head.metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(head.metadata["tokenizer.ggml.tokens"])


def _base_vocab_size(head: GgufHead) -> int:
    """Return the ids up to the last ordinary token; what follows are added tokens."""
    types = _token_types(head)
    return max((number for number, kind in enumerate(types) if kind in (_NORMAL, _BYTE)), default=-1) + 1


def _description(head: GgufHead, name: str, base_size: int) -> dict[str, Any]:
    """Return the tokenizer.json of a GGUF file's byte-level BPE."""
    tokens: list[str] = head.metadata["tokenizer.ggml.tokens"]
    added = [
        _added_token(number, tokens[number], special=kind == _CONTROL)
        for number, kind in enumerate(_token_types(head))
        if kind not in (_NORMAL, _BYTE)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*PRE_TOKENIZERS[name], _byte_level()]},
        "post_processor": _post_processor(head, name),
        "decoder": _byte_level(),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name in _IGNORE_MERGES,
            "vocab": {token: number for number, token in enumerate(tokens[:base_size])},
            "merges": head.metadata.get("tokenizer.ggml.merges", []),
        },
    }


def _added_token(number: int, text: str, *, special: bool) -> dict[str, Any]:
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": text, "special": special, **rules}


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def _post_processor(head: GgufHead, name: str) -> dict[str, Any] | None:
    """Return the template that adds begin and end tokens, if the file asks for them."""
    begin = head.metadata.get("tokenizer.ggml.bos_token_id")
    end = head.metadata.get("tokenizer.ggml.eos_token_id")
    wants_begin = head.metadata.get("tokenizer.ggml.add_bos_token", name in _BEGINS_WITH_BOS)
    before = [begin] if begin is not None and wants_begin else []
    after = [end] if end is not None and head.metadata.get("tokenizer.ggml.add_eos_token", False) else []
    if not before and not after:
        return None
    tokens: list[str] = head.metadata["tokenizer.ggml.tokens"]
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    single = [*(_template_token(tokens[n]) for n in before), sequence, *(_template_token(tokens[n]) for n in after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
            for number in {*before, *after}
        },
    }


def _template_token(text: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": text, "type_id": 0}}
