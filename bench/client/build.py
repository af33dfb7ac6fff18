"""Makes what the comparison needs: the programs in C++, and a tokenizer trained on the spot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_HERE = Path(__file__).parent
_FLAGS = ("-O2", "-march=native", "-std=c++17")
_ENTRIES = 8000
_END = "<|endoftext|>"


def compiler() -> str | None:
    """Return the C++ compiler; None where there is none."""
    return shutil.which("g++")


def build(source: Path, folder: Path) -> Path:
    """Compile one source into the folder, unless that was done since it changed; returns the program."""
    program = folder / source.stem
    folder.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([compiler() or "g++", *_FLAGS, "-o", str(program), str(source)], check=True)
    return program


def build_server(folder: Path, instrument: Path | None = None) -> Path:
    """Compile the truth server, or the one of another folder that has the same options, `sse_server.cpp`."""
    return build(_HERE / "truth_server.cpp" if instrument is None else instrument / "sse_server.cpp", folder)


def build_floor(folder: Path) -> Path:
    """Compile the floor."""
    return build(_HERE / "floor.cpp", folder)


def train_tokenizer(folder: Path) -> Path:
    """Train a BPE of 8,000 entries on the sources of Python's standard library; returns its folder."""
    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_ENTRIES,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sources, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "model_max_length": 131_072}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
