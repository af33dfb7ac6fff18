"""llama.cpp: found as `llama-server`, or as the Python package xllamacpp, with one table of options for both.

Functions from values to values, and `find`, which looks at PATH and at installed packages.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Literal

from servetune.engines.base import Explanation, command_line_options, explain_by_patterns
from servetune.engines.catalogue import load_catalogue
from servetune.engines.llamacpp_launcher import NEEDED_CPU_FLAGS
from servetune.records import (
    Catalogue,
    Command,
    Config,
    EngineSpec,
    Failed,
    HostFacts,
    Installed,
    Missing,
    ModelFacts,
    OptionValue,
)

CTX_PER_SLOT = 4096
"""Tokens of context for each slot where `ctx_size` is not set."""
_BYTES_PER_VALUE = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
_WORKING_MEMORY_BYTES = 256 << 20
"""Computation buffers and the program itself, about; small models measured 160 to 400 MiB of resident size in all."""

_PATTERNS = {
    r"couldn't bind HTTP server socket|address already in use": "port-in-use",
    r"this processor lacks": "unsupported-cpu",
    r"insufficient memory|failed to allocate buffer|unable to allocate|bad_alloc|out of memory|cudaMalloc failed": (
        "out-of-memory"
    ),
    r"unrecognized arguments|invalid choice|invalid int value|expected one argument|invalid argument: -"
    r"|error while handling argument|unknown argument": "unknown-option",
    r"V cache quantization requires|quantized V cache|requires flash.attn": "refused",
    r"package xllamacpp is not installed": "not-installed",
    r"failed to load model|there is no model file|invalid magic|not within the file bounds": "bad-model",
    r"failed to create.context": "refused",
}


class LlamaCpp:
    """The engine of records.Config.engine "llamacpp"."""

    name = "llamacpp"
    ready_path = "/health"
    accepts_ignore_eos = True
    model_form: Literal["gguf", "hub", "any-name"] = "gguf"

    def catalogue(self) -> Catalogue:
        """Return every option of llama.cpp's server that servetune knows."""
        return load_catalogue("llamacpp")

    def find(self, spec: EngineSpec) -> Installed | Missing:
        """Look for the command or python of `spec`, else llama-server on PATH, else the package xllamacpp here."""
        if spec.python:
            return _other_python(spec.python)
        program = shutil.which(spec.command or "llama-server")
        if program:
            how = "given command" if spec.command else "llama-server on PATH"
            return Installed(engine="llamacpp", version=_server_version(program), argv=(program,), how=how)
        if spec.command:
            fix = "correct command, or remove it to use llama-server on PATH or the package xllamacpp"
            return Missing(engine="llamacpp", reason=f"there is no program {spec.command}", remedy=fix)
        if importlib.util.find_spec("xllamacpp") is None:
            return Missing(
                engine="llamacpp",
                reason="neither llama-server on PATH nor the Python package xllamacpp",
                remedy="pip install 'servetune[local]'",
            )
        return _package(sys.executable, metadata.version("xllamacpp"))

    def preflight(self, config: Config, *, model: ModelFacts | None, host: HostFacts) -> Failed | None:
        """Return a processor, context or memory that certainly cannot do; None where nothing is known against it."""
        return _cpu_problem(host) or (
            _context_problem(config, model) or _memory_problem(config, model, host) if model else None
        )

    def command(self, config: Config, *, spec: EngineSpec, installed: Installed, model: str, port: int) -> Command:
        """Return the command line; slots, context and connection threads are always given, so that both ways agree."""
        options = command_line_options(config, self.catalogue(), fixed=_always(config))
        argv = (*installed.argv, "--model", model, "--host", "127.0.0.1", "--port", str(port), "--metrics", *options)
        return Command(argv=argv, env=dict(spec.env))

    def is_ready(self, status: int, body: bytes) -> bool:
        """Tell whether /health says that the model is loaded."""
        return status == 200 and re.search(rb'"status"\s*:\s*"ok"', body) is not None

    def explain(self, log: str, exit_code: int | None) -> Explanation | None:
        """Return the cause that llama.cpp's log or its exit code show."""
        return explain_by_patterns(log, exit_code, _PATTERNS)


# --------------------------------------------------------------------------- finding it


def _server_version(program: str) -> str:
    """Return what `llama-server --version` says, or "unknown" if it does not answer."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    said = re.search(r"version:?\s*(\S+(?: \([0-9a-f]+\))?)", done.stderr + done.stdout)
    return f"build {said.group(1)}" if said else "unknown"


def _package(python: str, version: str) -> Installed:
    """Return xllamacpp as an engine; the last part of its version is llama.cpp's build number."""
    return Installed(
        engine="llamacpp",
        version=f"build {version.rpartition('.')[2]} (xllamacpp {version})",
        argv=(python, "-m", "servetune.engines.llamacpp_launcher"),
        how=f"Python package xllamacpp {version}",
    )


_ASK_VERSION = "import servetune; from importlib.metadata import version; print(version('xllamacpp'))"


def _other_python(python: str) -> Installed | Missing:
    try:
        done = subprocess.run([python, "-c", _ASK_VERSION], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Missing(engine="llamacpp", reason=f"{python} cannot be run: {error}", remedy="correct python")
    if done.returncode != 0:
        remedy = f"{python} -m pip install 'servetune[local]'"
        last = done.stderr.strip().rpartition("\n")[2]
        return Missing(engine="llamacpp", reason=f"{python} lacks servetune or xllamacpp: {last}", remedy=remedy)
    return _package(python, done.stdout.strip())


# --------------------------------------------------------------------------- before the start


def _always(config: Config) -> dict[str, OptionValue]:
    """Return the options that are passed even at their defaults."""
    options = load_catalogue("llamacpp").options
    slots = int(config.options.get("parallel", options["parallel"].default or 1))
    return {
        "parallel": slots,
        "ctx_size": CTX_PER_SLOT * slots,
        "threads_http": options["threads_http"].default or 1,
    }


def _refused(cause: str, evidence: str) -> Failed:
    return Failed(stage="preflight", cause=cause, evidence=evidence)


def _cpu_problem(host: HostFacts) -> Failed | None:
    """Return which instructions an x86 processor lacks, where only the package xllamacpp can serve."""
    is_x86 = any(flag.startswith(("sse", "avx")) for flag in host.cpu_flags)
    only_package = "xllamacpp" in host.packages and "llama-server" not in host.packages
    missing = [flag for flag in NEEDED_CPU_FLAGS if flag not in host.cpu_flags]
    if not (is_x86 and only_package and missing):
        return None
    return _refused(
        "unsupported-cpu",
        f"{host.cpu} lacks {', '.join(missing)}, which the package xllamacpp was built for;"
        " build llama.cpp on this machine and put llama-server on PATH",
    )


def _context_problem(config: Config, model: ModelFacts) -> Failed | None:
    """Return a context that the user set beyond what the model was trained for."""
    if "ctx_size" not in config.options or model.context_length is None:
        return None
    always = _always(config)
    slots = 1 if config.options.get("kv_unified") else int(always["parallel"])
    each = int(config.options["ctx_size"]) // slots
    if each <= model.context_length:
        return None
    most = model.context_length * slots
    evidence = (
        f"ctx_size gives {each} tokens to each of {slots} slots, the model takes {model.context_length}: at most {most}"
    )
    return _refused("refused", evidence)


def _memory_problem(config: Config, model: ModelFacts, host: HostFacts) -> Failed | None:
    """Return what is needed and what is there, if weights, KV space and buffers exceed the available memory."""
    if host.memory_available_gib is None or config.options.get("n_gpu_layers"):
        return None
    context = int({**_always(config), **config.options}["ctx_size"])
    kv = kv_bytes(config, model, context)
    needed = model.size_bytes + kv + _WORKING_MEMORY_BYTES
    if needed <= host.memory_available_gib * 2**30:
        return None
    return _refused(
        "out-of-memory",
        f"needs {needed / 2**30:.1f} GiB (weights {model.size_bytes / 2**30:.1f}, KV space of {context} tokens"
        f" {kv / 2**30:.1f}, buffers about {_WORKING_MEMORY_BYTES / 2**30:.1f}),"
        f" but {host.memory_available_gib:.1f} GiB are available; lower ctx_size or parallel",
    )


def kv_bytes(config: Config, model: ModelFacts, context_tokens: int) -> int:
    """Return the bytes of the KV space: layers x KV heads x head dimension x tokens x (bytes of a key + of a value).

    0 where the model does not say its shape.
    """
    if model.layers is None or model.kv_heads is None or model.head_dim is None:
        return 0
    each = sum(_BYTES_PER_VALUE[str(config.options.get(name, "f16"))] for name in ("cache_type_k", "cache_type_v"))
    return int(model.layers * model.kv_heads * model.head_dim * context_tokens * each)
