"""The contract of engines, kept by llama.cpp, and what it says before a start."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from servetune.engines import get
from servetune.engines.base import Engine
from servetune.engines.llamacpp import CTX_PER_SLOT, kv_bytes
from servetune.records import Config, EngineSpec, Failed, Installed, Missing, ModelFacts, OptionValue
from tests.contract.engine_contract import HOST, EngineContract, Golden

MODEL = ModelFacts(
    path="m.gguf", size_bytes=2 * 2**30, layers=30, kv_heads=3, head_dim=64, context_length=8192, quantization="Q4_0"
)


NO_MEMORY = """E ggml_aligned_malloc: insufficient memory (attempted to allocate 87890.62 MB)
E cmn common_init_: failed to create context with model 'm.gguf'
E srv init: exiting due to model loading error
"""


class TestLlamaCpp(EngineContract):
    """llama.cpp's server."""

    @property
    def engine(self) -> Engine:
        """The engine under test."""
        return get("llamacpp")

    @property
    def golden(self) -> tuple[Golden, ...]:
        """Slots, context and connection threads are always given; the options of the spec are no part of a command."""
        return (
            Golden(
                options={},
                model="m.gguf",
                port=9,
                argv=(
                    *("--model", "m.gguf", "--host", "127.0.0.1", "--port", "9", "--metrics"),
                    *("--ctx-size", "16384", "--parallel", "4", "--threads-http", "256"),
                ),
            ),
            Golden(
                options={
                    "threads": 2,
                    "repack": False,
                    "cont_batching": False,
                    "cache_type_k": "q8_0",
                    "parallel": 2,
                    "kv_unified": True,
                },
                fixed={"threads": 1},
                model="a b.gguf",
                port=80,
                argv=(
                    *("--model", "a b.gguf", "--host", "127.0.0.1", "--port", "80", "--metrics"),
                    *("--cache-type-k", "q8_0", "--no-cont-batching", "--ctx-size", "8192", "--kv-unified"),
                    *("--parallel", "2", "--no-repack", "--threads", "2", "--threads-http", "256"),
                ),
            ),
            Golden(
                options={"ctx_size": 512, "repack": True, "cont_batching": True, "flash_attn": "on"},
                model="m.gguf",
                port=9,
                argv=(
                    *("--model", "m.gguf", "--host", "127.0.0.1", "--port", "9", "--metrics"),
                    *("--cont-batching", "--ctx-size", "512", "--flash-attn", "on", "--parallel", "4"),
                    *("--threads-http", "256"),
                ),
            ),
        )

    ready_answers = ((200, b'{"status":"ok"}'), (200, b'{"status": "ok"}'))
    unready_answers = (
        (503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'),
        (200, b""),
        (200, b'{"status":"error"}'),
        (404, b""),
    )
    explained = (
        ("E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9713", 1, "port-in-use"),
        (
            "E llama_model_load_from_file_impl: failed to load model\nE srv init: exiting due to model loading error",
            1,
            "bad-model",
        ),
        ("error: there is no model file /none.gguf", 1, "bad-model"),
        (
            NO_MEMORY,
            1,
            "out-of-memory",
        ),
        ("E llama_init_from_model: quantized V cache requires flash_attn to be enabled", 1, "refused"),
        ("E srv load_model: failed to create_context with model 'm.gguf'", 1, "refused"),
        ("error: unrecognized arguments: --nonsense", 1, "unknown-option"),
        ("error: invalid argument: --nonsense", 1, "unknown-option"),
        ("error: this processor lacks avx2, which the package xllamacpp was built for", 1, "unsupported-cpu"),
        ("error: the package xllamacpp is not installed: No module named 'xllamacpp'", 1, "not-installed"),
        ("GGML_ASSERT(n > 0) failed", -6, "crashed"),
        ("", -11, "crashed"),
        ("", -9, "killed"),
        ("", -4, "unsupported-cpu"),
    )


def preflight(host: object = HOST, model: ModelFacts | None = MODEL, **options: OptionValue) -> Failed | None:
    """What is said before a start of llama.cpp."""
    config = Config(engine="llamacpp", options=options)
    return get("llamacpp").preflight(config, model=model, host=host)  # type: ignore[arg-type]


PACKAGED = msgspec.structs.replace(HOST, packages={"xllamacpp": "2026.10.11549"}, cpu="Old Xeon")


def test_a_processor_without_avx2_is_refused_before_the_start() -> None:
    """The missing instructions and the remedy are named, and only where nothing else can serve."""
    old = msgspec.structs.replace(PACKAGED, cpu_flags=("sse2", "sse4_2", "avx"))
    seen = preflight(old)
    assert seen is not None
    assert (seen.stage, seen.cause) == ("preflight", "unsupported-cpu")
    assert "Old Xeon lacks avx2, fma, f16c, bmi2" in seen.evidence
    assert preflight(PACKAGED) is None
    own_build = {"xllamacpp": "1", "llama-server": "on PATH"}
    assert preflight(msgspec.structs.replace(old, packages=own_build)) is None
    assert preflight(msgspec.structs.replace(old, packages={})) is None


@pytest.mark.parametrize("flags", [(), ("asimd", "i8mm")])
def test_other_processors_are_not_judged(flags: tuple[str, ...]) -> None:
    """Unknown flags and other architectures are left to the engine."""
    assert preflight(msgspec.structs.replace(PACKAGED, cpu_flags=flags)) is None


def test_too_little_memory_is_refused_with_the_figures() -> None:
    """Weights, KV space and buffers are compared with what is available."""
    small = msgspec.structs.replace(HOST, memory_available_gib=2.2)
    seen = preflight(small)
    assert seen is not None
    assert (seen.stage, seen.cause) == ("preflight", "out-of-memory")
    assert "needs 2.6 GiB (weights 2.0, KV space of 16384 tokens 0.4, buffers about 0.2)" in seen.evidence
    assert "2.2 GiB are available" in seen.evidence


def test_memory_is_not_judged_where_it_is_not_known_or_not_used() -> None:
    """Unknown memory, layers on a GPU and an unknown model pass."""
    small = msgspec.structs.replace(HOST, memory_available_gib=0.1)
    assert preflight(small) is not None
    assert preflight(small, n_gpu_layers=99) is None
    assert preflight(small, model=None) is None
    assert preflight(msgspec.structs.replace(HOST, memory_available_gib=None)) is None


def test_a_kv_cache_too_large_for_memory_is_refused() -> None:
    """Many slots of context need more than the host has."""
    unbounded = msgspec.structs.replace(MODEL, context_length=None)
    seen = preflight(model=unbounded, ctx_size=4_000_000)
    assert seen is not None
    assert seen.cause == "out-of-memory"
    assert preflight(model=unbounded, ctx_size=100_000) is None


def test_context_beyond_the_models_is_refused() -> None:
    """The limit is for each slot, or for the shared space."""
    assert preflight(ctx_size=4 * 8192) is None
    seen = preflight(ctx_size=4 * 8192 + 4)
    assert seen is not None
    assert seen.cause == "refused"
    assert "at most 32768" in seen.evidence
    assert preflight(ctx_size=16384, parallel=2) is None
    assert preflight(ctx_size=16384, kv_unified=True) is not None


def test_kv_bytes_follow_the_shape_and_the_types() -> None:
    """The SmolLM2-135M shape takes 23 040 bytes a token in f16; q8_0 is 17/32 of that; an unknown shape is 0."""
    assert kv_bytes(Config(engine="llamacpp"), MODEL, 1) == 23_040
    half = Config(engine="llamacpp", options={"cache_type_k": "q8_0", "cache_type_v": "q8_0"})
    assert kv_bytes(half, MODEL, 32) == 23_040 * 17
    assert kv_bytes(half, msgspec.structs.replace(MODEL, layers=None), 32) == 0


def program(folder: Path, text: str) -> Path:
    """An executable script."""
    file = folder / "llama-server"
    file.write_text(text)
    file.chmod(0o755)
    return file


def find(**fields: str) -> Installed | Missing:
    """What is found for a spec with these fields."""
    return get("llamacpp").find(EngineSpec(name="llamacpp", **fields))  # type: ignore[arg-type]


def test_a_server_on_path_wins_over_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is what it says itself."""
    server = program(tmp_path, '#!/bin/sh\necho "version: 6710 (74f52f77f)" >&2\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find()
    assert found == Installed(
        engine="llamacpp", version="build 6710 (74f52f77f)", argv=(str(server),), how="llama-server on PATH"
    )


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/nowhere/interpreter\n"])
def test_a_program_that_says_no_version_is_unknown(text: str, tmp_path: Path) -> None:
    """It is still used: the start will show whether it serves."""
    found = find(command=str(program(tmp_path, text)))
    assert isinstance(found, Installed)
    assert (found.version, found.how) == ("unknown", "given command")


def test_a_command_that_does_not_exist_is_missing() -> None:
    """The package is not used in its place."""
    found = find(command="/nowhere/llama-server")
    assert isinstance(found, Missing)
    assert "/nowhere/llama-server" in found.reason


def test_the_package_is_found_with_its_build_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part of the package's version is llama.cpp's build."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2026.10.11549")
    found = find()
    assert isinstance(found, Installed)
    assert found.version == "build 11549 (xllamacpp 2026.10.11549)"
    assert found.argv == (sys.executable, "-m", "servetune.engines.llamacpp_launcher")


def test_nothing_installed_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is one command."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    found = find()
    assert isinstance(found, Missing)
    assert found.remedy == "pip install 'servetune[local]'"


def test_another_python_is_asked(tmp_path: Path) -> None:
    """It must have servetune and the package; what it lacks is said."""
    good = program(tmp_path, "#!/bin/sh\necho 2027.1.12000\n")
    found = find(python=str(good))
    assert isinstance(found, Installed)
    assert (found.version, found.argv[0]) == ("build 12000 (xllamacpp 2027.1.12000)", str(good))
    bad = program(tmp_path, "#!/bin/sh\necho 'ModuleNotFoundError: No module named servetune' >&2\nexit 1\n")
    found = find(python=str(bad))
    assert isinstance(found, Missing)
    assert "No module named servetune" in found.reason
    assert isinstance(find(python="/nowhere/python"), Missing)


def test_the_context_of_a_slot_fits_the_built_in_chats() -> None:
    """4096 tokens hold the longest pair of the chat workload and a chat template."""
    assert CTX_PER_SLOT >= 2048 + 512
