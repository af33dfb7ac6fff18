"""Serves a GGUF file with the llama.cpp server inside the Python package xllamacpp, by llama-server's own flags.

Run as a program: `python -m servetune.engines.llamacpp_launcher --model FILE --port PORT [flags of the catalogue]`.
A process of its own; knows nothing of servetune but the option catalogue. Ends at once on SIGTERM and SIGINT, and with
exit code 1 and a line that begins with "error:" when it cannot serve.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from servetune.engines.catalogue import load_catalogue
from servetune.records import OptionSpec

NEEDED_CPU_FLAGS = ("avx2", "fma", "f16c", "bmi2")
"""Instructions that the package's x86 build uses without asking the processor."""

FIELDS: dict[str, str] = {
    "threads": "cpuparams.n_threads",
    "threads_batch": "cpuparams_batch.n_threads",
    "poll": "cpuparams.poll",
    "parallel": "n_parallel",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "cont_batching": "cont_batching",
    "flash_attn": "flash_attn_type",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "kv_unified": "kv_unified",
    "ctx_size": "n_ctx",
    "cache_prompt": "cache_prompt",
    "cache_ram": "cache_ram_mib",
    "repack": "no_extra_bufts",
    "n_gpu_layers": "n_gpu_layers",
    "threads_http": "n_threads_http",
}
"""Option -> field of xllamacpp.CommonParams."""

_FLASH_ATTENTION = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


class _Parser(argparse.ArgumentParser):
    """Refuses with one line and exit code 1."""

    def error(self, message: str) -> NoReturn:
        _give_up(message)


def main(argv: Sequence[str]) -> None:
    """Serve until a signal ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    chosen = parse(argv)
    _check_processor()
    if not Path(chosen["model"]).is_file():
        _give_up(f"there is no model file {chosen['model']}")
    try:
        import xllamacpp  # noqa: PLC0415  # only after the processor is known to have its instructions
    except ImportError as error:
        _give_up(f"the package xllamacpp is not installed: {error}")
    try:
        server = xllamacpp.Server(parameters(chosen, xllamacpp))
    except RuntimeError as error:
        _give_up(f"llama.cpp did not start, see the lines above: {error}")
    sys.stderr.write(f"listening on {server.listening_address}\n")
    sys.stderr.flush()
    while True:
        signal.pause()


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return the chosen values by option name (with model, host and port); ends the process for an unknown flag."""
    parser = _Parser(prog="llamacpp_launcher", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--metrics", action="store_true", default=False)
    for option in load_catalogue("llamacpp").options.values():
        _add_flags(parser, option)
    return vars(parser.parse_args(argv))


def _add_flags(parser: argparse.ArgumentParser, option: OptionSpec) -> None:
    if option.type == "bool":
        for flag, action in ((option.flag, "store_true"), (option.off_flag, "store_false")):
            if flag:
                parser.add_argument(flag, dest=option.name, action=action)
    else:
        kind = int if option.type == "int" else str
        parser.add_argument(option.flag or "", dest=option.name, type=kind, choices=option.choices or None)


def parameters(chosen: Mapping[str, Any], xllamacpp: Any) -> Any:
    """Return xllamacpp.CommonParams with every chosen option; others keep llama.cpp's defaults."""
    params = xllamacpp.CommonParams()
    params.model.path = chosen["model"]
    params.hostnames = [chosen["host"]]
    params.port = chosen["port"]
    params.endpoint_metrics = chosen["metrics"]
    params.fit_params = "n_gpu_layers" not in chosen and _has_gpu(xllamacpp)
    for name, field in FIELDS.items():
        if name in chosen:
            *owners, last = field.split(".")
            setattr(getattr(params, owners[0]) if owners else params, last, _native(name, chosen[name], xllamacpp))
    if "threads" in chosen and "threads_batch" not in chosen:
        params.cpuparams_batch.n_threads = chosen["threads"]
    return params


def _native(name: str, value: Any, xllamacpp: Any) -> Any:
    """Return the value in the form of its field."""
    if name == "repack":
        return not value
    if name == "flash_attn":
        return getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{_FLASH_ATTENTION[value]}")
    if name in ("cache_type_k", "cache_type_v"):
        return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}")
    return value


def _has_gpu(xllamacpp: Any) -> bool:
    """Tell whether this build sees a device beside the processor; only then is fitting to its memory worth a load."""
    return any("GPU" in getattr(device.get("type"), "name", "") for device in xllamacpp.get_device_info())


def _check_processor() -> None:
    flags = _cpu_flags()
    missing = [flag for flag in NEEDED_CPU_FLAGS if flags and flag not in flags]
    if missing:
        _give_up(
            f"this processor lacks {', '.join(missing)}, which the package xllamacpp was built for;"
            " build llama.cpp on this machine and put llama-server on PATH"
        )


def _cpu_flags() -> list[str]:
    """Return the processor's flags on x86, [] elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return line.partition(":")[2].split()


def _give_up(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
