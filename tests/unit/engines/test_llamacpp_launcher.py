"""The launcher over xllamacpp: its flags are the catalogue's, and what it refuses it refuses in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servetune.engines import get, llamacpp_launcher
from servetune.engines.base import command_line_options
from servetune.engines.catalogue import axis_values
from servetune.records import Config, OptionValue

NEEDED = ["--model", "m.gguf", "--port", "9"]


def field(params: object, path: str) -> object:
    """The value of a field of CommonParams by its dotted name."""
    for name in path.split("."):
        params = getattr(params, name)
    return params


def every_value() -> list[tuple[str, OptionValue]]:
    """Every option of the catalogue with each value worth trying."""
    options = get("llamacpp").catalogue().options.values()
    return [(option.name, value) for option in options for value in axis_values(option) or (1024,)]


@pytest.mark.parametrize(("name", "value"), every_value())
def test_every_option_reaches_its_field(name: str, value: OptionValue) -> None:
    """A command line with the option is accepted and sets the field; no option is without a field."""
    xllamacpp = pytest.importorskip("xllamacpp")
    catalogue = get("llamacpp").catalogue()
    argv = command_line_options(Config(engine="llamacpp", options={name: value}), catalogue)
    params = llamacpp_launcher.parameters(llamacpp_launcher.parse([*NEEDED, *argv]), xllamacpp)
    found = field(params, llamacpp_launcher.FIELDS[name])
    names = {"flash_attn": str(value).upper(), "cache_type_k": str(value).upper(), "cache_type_v": str(value).upper()}
    if name == "repack":
        assert found is not value
    elif name == "flash_attn":
        assert found.name.endswith({"on": "_ENABLED", "off": "_DISABLED", "auto": "_AUTO"}[str(value)])  # type: ignore[attr-defined]
    elif name in names:
        assert found.name == f"GGML_TYPE_{names[name]}"  # type: ignore[attr-defined]
    else:
        assert found == value


def test_every_choice_of_a_cache_type_exists() -> None:
    """The package knows each type that the catalogue offers."""
    xllamacpp = pytest.importorskip("xllamacpp")
    for choice in get("llamacpp").catalogue().options["cache_type_k"].choices:
        assert hasattr(xllamacpp.ggml_type, f"GGML_TYPE_{str(choice).upper()}")


def test_defaults_stay_llama_cpps() -> None:
    """Options that are not given keep the package's values, and those agree with the catalogue."""
    xllamacpp = pytest.importorskip("xllamacpp")
    params = llamacpp_launcher.parameters(llamacpp_launcher.parse(NEEDED), xllamacpp)
    always_given = {"parallel", "ctx_size", "threads_http"}
    for option in get("llamacpp").catalogue().options.values():
        if option.default is None or option.name in always_given:
            continue
        found = field(params, llamacpp_launcher.FIELDS[option.name])
        if option.name == "repack":
            assert found is False
        elif option.name == "flash_attn":
            assert found.name.endswith("_AUTO")  # type: ignore[attr-defined]
        elif option.name.startswith("cache_type"):
            assert found.name == "GGML_TYPE_F16"  # type: ignore[attr-defined]
        else:
            assert found == option.default, option.name
    assert (params.model.path, params.port, params.hostnames) == ("m.gguf", 9, ["127.0.0.1"])


def test_threads_are_for_prompts_too_unless_said_otherwise() -> None:
    """As llama-server does."""
    xllamacpp = pytest.importorskip("xllamacpp")
    both = llamacpp_launcher.parameters(llamacpp_launcher.parse([*NEEDED, "--threads", "3"]), xllamacpp)
    assert (both.cpuparams.n_threads, both.cpuparams_batch.n_threads) == (3, 3)
    apart = llamacpp_launcher.parse([*NEEDED, "--threads", "3", "--threads-batch", "5"])
    assert llamacpp_launcher.parameters(apart, xllamacpp).cpuparams_batch.n_threads == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*NEEDED, "--nonsense"], "error: unrecognized arguments: --nonsense"),
        ([*NEEDED, "--thread", "1"], "error: unrecognized arguments: --thread 1"),
        ([*NEEDED, "--flash-attn", "maybe"], "error: argument --flash-attn: invalid choice"),
        ([*NEEDED, "--threads", "two"], "error: argument --threads: invalid int value"),
        (["--model", "m.gguf"], "error: the following arguments are required: --port"),
    ],
)
def test_a_wrong_command_line_ends_with_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and a line that begins with "error:"."""
    with pytest.raises(SystemExit) as ended:
        llamacpp_launcher.main(argv)
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_a_missing_model_ends_with_one_line(tmp_path: Path) -> None:
    """Seen in a process of its own, as the keeper starts it."""
    argv = [
        sys.executable,
        "-m",
        "servetune.engines.llamacpp_launcher",
        "--model",
        str(tmp_path / "none"),
        "--port",
        "9",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: there is no model file {tmp_path / 'none'}\n"


def test_a_processor_without_its_instructions_is_said_before_the_package_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The import that would end with an illegal instruction is never reached."""
    monkeypatch.setattr(llamacpp_launcher, "_cpu_flags", lambda: ["sse2", "avx"])
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(SystemExit):
        llamacpp_launcher.main(NEEDED)
    assert "this processor lacks avx2, fma, f16c, bmi2" in capsys.readouterr().err


def test_a_missing_package_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the import error's own words."""
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.setattr(llamacpp_launcher, "_cpu_flags", list)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(SystemExit):
        llamacpp_launcher.main(["--model", str(tmp_path / "m.gguf"), "--port", "9"])
    assert "the package xllamacpp is not installed" in capsys.readouterr().err


def test_a_build_with_a_gpu_is_seen() -> None:
    """Fitting to a GPU's memory is kept only there, where no number of layers was given."""

    class Kind:
        def __init__(self, name: str) -> None:
            self.name = name

    class Package:
        def __init__(self, *names: str) -> None:
            self.devices = [{"type": Kind(name)} for name in names]

        def get_device_info(self) -> list[dict[str, Kind]]:
            return self.devices

    assert llamacpp_launcher._has_gpu(Package("GGML_BACKEND_DEVICE_TYPE_CPU", "GGML_BACKEND_DEVICE_TYPE_GPU"))
    assert not llamacpp_launcher._has_gpu(Package("GGML_BACKEND_DEVICE_TYPE_CPU", "GGML_BACKEND_DEVICE_TYPE_ACCEL"))
