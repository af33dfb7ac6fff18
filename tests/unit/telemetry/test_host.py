"""Host facts, container limits, and the rules about what would spoil a measurement."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from servetune.limits import Limits, limits, usable_cores
from servetune.telemetry import host
from servetune.telemetry.checks import CODES, Readings, findings

QUIET = Readings(
    cores=8,
    online_cores=8,
    busy_share=0.01,
    steal_share=0.0,
    load_average=0.1,
    descriptors=1_000_000,
    memory_available_gib=30.0,
    swap_used_mib=0.0,
    governors=("performance",),
    cpu="a processor",
    cpu_flags=("sse2", "avx2"),
    clock="tsc",
    disks_free_gb={"/data": 100.0},
)


def test_a_quiet_host_has_no_findings() -> None:
    """Nothing is said where nothing is wrong, nor where nothing is known."""
    assert findings(QUIET) == []
    assert findings(Readings(cores=1, online_cores=1)) == []


@pytest.mark.parametrize(
    ("changes", "code", "evidence"),
    [
        ({"busy_share": 0.5}, "host-busy", "50% of the processor time is in use, the load average is 0.1 on 8 cores"),
        ({"busy_share": None, "load_average": 9.0}, "host-busy", "the load average is 9.0 on 8 cores"),
        ({"steal_share": 0.09}, "cpu-steal", "9% of the processor time was given to other virtual machines"),
        ({"descriptors": 1024}, "few-descriptors", "this process may open 1024 files and sockets"),
        ({"memory_available_gib": 1.25}, "little-memory", "1.2 GiB are available"),
        ({"swap_used_mib": 3071.0}, "swap-in-use", "3071 MiB are swapped out"),
        ({"governors": ("performance", "powersave")}, "cpu-governor", "the frequency governor is powersave"),
        ({"quota_cores": 1.5, "cores": 1}, "cpu-quota", "a quota of 1.5 cores on a machine of 8"),
        ({"cpu_flags": ("sse2", "avx")}, "no-avx2", "a processor has no AVX2"),
        ({"clock": "acpi_pm"}, "clock-source", "the kernel's clock source is acpi_pm"),
        ({"disks_free_gb": {"/a": 5.0, "/b": 0.8}}, "disk-nearly-full", "0.8 GB are free in /b"),
    ],
)
def test_each_rule(changes: dict[str, object], code: str, evidence: str) -> None:
    """One changed reading gives one finding with that reading as evidence, and advice."""
    (found,) = findings(msgspec.structs.replace(QUIET, **changes))
    assert (found.code, found.evidence) == (code, evidence)
    assert found.advice
    assert code in CODES


def test_warnings_come_before_notes() -> None:
    """The reader sees first what matters more."""
    bad = msgspec.structs.replace(QUIET, governors=("powersave",), clock="hpet", steal_share=0.2, descriptors=100)
    assert [finding.severity for finding in findings(bad)] == ["warning", "warning", "note", "note"]


def test_other_processors_are_not_asked_for_avx2() -> None:
    """ARM has other instructions."""
    assert findings(msgspec.structs.replace(QUIET, cpu_flags=("asimd",))) == []


@pytest.mark.parametrize("code", sorted(set(CODES)))
def test_every_code_has_a_page(code: str) -> None:
    """The page has the headings that every page of a finding has."""
    page = Path(__file__).parents[3] / "docs" / "findings" / f"{code}.md"
    if code == "host-busy" and not page.exists():
        pytest.skip("written with the findings of measurements")
    lines = page.read_text().splitlines()
    assert lines[0] == f"# {code}"
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## What it means", "## Why it matters", "## Example", "## What to do"]


# --------------------------------------------------------------------------- control groups


def tree(root: Path, files: dict[str, str]) -> Path:
    """A file system with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_limits_of_v2_take_the_tightest_group(tmp_path: Path) -> None:
    """A quota on the slice above and memory on the group itself both count; file cache can be given back."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/app.service",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000",
            "sys/fs/cgroup/user.slice/memory.max": "max",
            "sys/fs/cgroup/user.slice/app.service/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/app.service/memory.max": "4000000000",
            "sys/fs/cgroup/user.slice/app.service/memory.current": "3000000000",
            "sys/fs/cgroup/user.slice/app.service/memory.stat": "anon 1\ninactive_file 500000000",
        },
    )
    assert limits(root) == Limits(cpu_cores=1.5, memory_bytes=4_000_000_000, memory_left_bytes=1_500_000_000)


def test_limits_of_v1(tmp_path: Path) -> None:
    """Controllers have folders of their own, also joint ones; other controllers are left alone."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/x\n5:pids:/x\n4:memory:/box\n3:cpu,cpuacct:/box\n0::/",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000000",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "2000000",
            "sys/fs/cgroup/pids/x/pids.max": "10",
        },
    )
    assert limits(root) == Limits(cpu_cores=0.5, memory_bytes=1_000_000, memory_left_bytes=0)


@pytest.mark.parametrize(
    "files",
    [
        {"nothing": ""},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0"},
    ],
)
def test_no_limits_are_none(files: dict[str, str], tmp_path: Path) -> None:
    """No groups, no limits, and nonsense give None."""
    assert limits(tree(tmp_path, files)) == Limits()


# --------------------------------------------------------------------------- this machine


def test_facts_of_this_machine() -> None:
    """The figures are possible, and agree with what Python itself says."""
    facts = host.facts()
    assert facts.python == platform.python_version()
    assert facts.cores >= 1
    assert facts.memory_available_gib is not None
    assert 0 < facts.memory_available_gib <= facts.memory_gib
    assert facts.cpu
    assert {"numpy", "httptools"} <= set(facts.packages)
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert "sse2" in facts.cpu_flags


def test_problems_of_this_machine_are_findings() -> None:
    """Whatever is said has a code with a page."""
    assert {finding.code for finding in host.problems()} <= set(CODES)


def test_a_quota_lowers_the_usable_cores() -> None:
    """Cores are whole, and at least one."""
    assert usable_cores(Limits(cpu_cores=0.5)) == 1
    assert usable_cores(Limits(cpu_cores=1.9)) == 1
    assert usable_cores(Limits()) >= 1


def test_a_container_limit_lowers_the_available_memory() -> None:
    """What the group has left counts where it is less."""
    assert host._available_gib(Limits(memory_left_bytes=2**30)) == pytest.approx(1.0)


def test_processors_of_other_kinds(tmp_path: Path) -> None:
    """x86 and ARM name their flags differently; a system without the file still has a name."""
    x86 = tree(tmp_path, {"x86": "processor\t: 0\nmodel name\t: Zen\nflags\t\t: fpu sse2 avx2 fma\n\nflags\t: other"})
    assert host._processor(x86 / "x86") == ("Zen", ("sse2", "avx2", "fma"))
    arm = tree(tmp_path, {"arm": "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nModel\t\t: A Board"})
    assert host._processor(arm / "arm") == ("A Board", ("asimd", "asimddp", "i8mm"))
    name, flags = host._processor(tmp_path / "none")
    assert (bool(name), flags) == (True, ())


def test_gpus_and_governors_are_read(tmp_path: Path) -> None:
    """One line for each card of the driver; governors once each."""
    root = tree(
        tmp_path,
        {
            "gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nIRQ:   \t 1",
            "gpus/0000:02:00.0/information": "Model: \t\t NVIDIA H200",
            "cpu/cpu0/cpufreq/scaling_governor": "powersave",
            "cpu/cpu1/cpufreq/scaling_governor": "powersave",
            "cpu/cpuidle/current_driver": "none",
        },
    )
    assert host._gpus(root / "gpus") == ("NVIDIA H200", "NVIDIA H200")
    assert host._gpus(root / "none") == ()
    assert host._governors(root / "cpu") == ("powersave",)


def test_what_a_system_does_not_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load average, no release file, and no usable cache folder break nothing."""
    monkeypatch.setattr("os.getloadavg", _raise)
    monkeypatch.setattr("platform.freedesktop_os_release", _raise)
    monkeypatch.setenv("SERVETUNE_CACHE", "/proc/nowhere/cache")
    assert host._load_average() is None
    assert host._os_name() == platform.system()
    assert list(host._disks()) == [str(Path.cwd())]


def _raise() -> None:
    raise OSError


def test_a_server_on_path_is_among_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that an old processor is not refused where another build can serve."""
    (tmp_path / "llama-server").write_text("#!/bin/sh\n")
    (tmp_path / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.facts().packages["llama-server"] == "on PATH"


def test_an_idle_and_a_busy_processor_are_told_apart() -> None:
    """One program that never waits takes about one core's share of the time, however short the look."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        busy = max(host.watch_processor(0.2).busy for _ in range(3))
    finally:
        loop.kill()
        loop.wait()
    quiet = min(host.watch_processor(0.2).busy for _ in range(5))

    assert 0.5 / (psutil.cpu_count() or 1) < busy <= 1.0
    assert 0.0 <= quiet <= busy
    assert 0.0 <= host.watch_processor(0.05).steal <= 1.0
