"""Rules over what was read from a host: what would spoil a measurement there. Pure: from values to findings."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from servetune.records import Finding, Record

CODES: dict[str, str] = {
    "host-busy": "other programs are using the machine",
    "cpu-steal": "the hypervisor gives processor time to other machines",
    "few-descriptors": "few files and sockets may be open at once",
    "little-memory": "little memory is available",
    "swap-in-use": "memory has been moved to disk",
    "cpu-governor": "the processor changes its clock",
    "cpu-quota": "a container or service limits processor time",
    "no-avx2": "the processor lacks instructions that engines are built for",
    "clock-source": "reading the time is slow here",
    "disk-nearly-full": "records or models may not fit on the disk",
}
"""Every code that a Finding of this module may have, with what it means."""

BUSY_SHARE = 0.15
STEAL_SHARE = 0.02
FEW_DESCRIPTORS = 4096
LITTLE_MEMORY_GIB = 2.0
SWAP_MIB = 64.0
DISK_FREE_GB = 2.0
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
"""Clock sources that are read without a system call or an exit to the hypervisor."""


class Readings(Record, frozen=True, kw_only=True):
    """What was read; None where this system does not say."""

    cores: int
    """Cores that this process may use."""
    online_cores: int
    busy_share: float | None = None
    """Of all cores' time, over the moment of the reading."""
    steal_share: float | None = None
    load_average: float | None = None
    descriptors: int | None = None
    """Most that this process may open after raising its own limit; None: no limit."""
    memory_available_gib: float | None = None
    swap_used_mib: float | None = None
    governors: tuple[str, ...] = ()
    quota_cores: float | None = None
    cpu: str = ""
    cpu_flags: tuple[str, ...] = ()
    clock: str | None = None
    disks_free_gb: dict[str, float] = msgspec.field(default_factory=dict)
    """Folder -> free space."""


def findings(readings: Readings) -> list[Finding]:
    """Return what would spoil a measurement, the most serious first."""
    found = [*_processor(readings), *_memory(readings), *_system(readings)]
    return sorted(found, key=lambda finding: finding.severity == "note")


def _processor(readings: Readings) -> Iterator[Finding]:
    busy, load, cores = readings.busy_share, readings.load_average, readings.cores
    if (busy is not None and busy > BUSY_SHARE) or (load is not None and load > readings.online_cores):
        seen = [] if busy is None else [f"{busy:.0%} of the processor time is in use"]
        seen += [] if load is None else [f"the load average is {load:.1f} on {readings.online_cores} cores"]
        yield _warning("host-busy", ", ".join(seen), "stop other programs, or measure when the machine is idle")
    if readings.steal_share is not None and readings.steal_share > STEAL_SHARE:
        evidence = f"{readings.steal_share:.0%} of the processor time was given to other virtual machines"
        yield _warning("cpu-steal", evidence, "use a machine with dedicated cores, or more repeats")
    others = sorted(set(readings.governors) - {"performance"})
    if others:
        advice = "set it to performance: cpupower frequency-set -g performance"
        yield _note("cpu-governor", f"the frequency governor is {', '.join(others)}", advice)
    if readings.quota_cores is not None and readings.quota_cores < readings.online_cores:
        evidence = f"a quota of {readings.quota_cores:g} cores on a machine of {readings.online_cores}"
        yield _warning("cpu-quota", evidence, f"use at most {cores} threads, or raise the quota of the container")
    if any(flag.startswith("sse") for flag in readings.cpu_flags) and "avx2" not in readings.cpu_flags:
        evidence = f"{readings.cpu or 'the processor'} has no AVX2"
        yield _warning("no-avx2", evidence, "build llama.cpp on this machine and put llama-server on PATH")


def _memory(readings: Readings) -> Iterator[Finding]:
    available, swapped = readings.memory_available_gib, readings.swap_used_mib
    if available is not None and available < LITTLE_MEMORY_GIB:
        yield _warning("little-memory", f"{available:.1f} GiB are available", "stop other programs")
    if swapped is not None and swapped > SWAP_MIB:
        evidence = f"{swapped:.0f} MiB are swapped out"
        yield _warning("swap-in-use", evidence, "free memory, then swapoff -a && swapon -a")


def _system(readings: Readings) -> Iterator[Finding]:
    if readings.descriptors is not None and readings.descriptors < FEW_DESCRIPTORS:
        evidence = f"this process may open {readings.descriptors} files and sockets"
        yield _warning("few-descriptors", evidence, "raise the hard limit (ulimit -Hn, or LimitNOFILE of the service)")
    if readings.clock is not None and readings.clock not in GOOD_CLOCKS:
        evidence = f"the kernel's clock source is {readings.clock}"
        yield _note("clock-source", evidence, "choose tsc at boot if the processor's counter is stable")
    for folder, free in sorted(readings.disks_free_gb.items()):
        if free < DISK_FREE_GB:
            evidence = f"{free:.1f} GB are free in {folder}"
            yield _warning("disk-nearly-full", evidence, "free space there, or choose another folder")


def _warning(code: str, evidence: str, advice: str) -> Finding:
    return Finding(code=code, severity="warning", evidence=evidence, advice=advice)


def _note(code: str, evidence: str, advice: str) -> Finding:
    return Finding(code=code, severity="note", evidence=evidence, advice=advice)
