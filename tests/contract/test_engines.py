"""The contract of engines, kept by the built-in ones."""

from __future__ import annotations

from servetune.engines import get
from servetune.engines.base import Engine
from tests.contract.engine_contract import EngineContract, Golden


class TestMock(EngineContract):
    """The mock engine."""

    @property
    def engine(self) -> Engine:
        """The engine under test."""
        return get("mock")

    @property
    def golden(self) -> tuple[Golden, ...]:
        """Flags and switches that are off; the options of the engine's table are no part of a command."""
        return (
            Golden(options={}, model="m", port=9, argv=("--port", "9", "--model", "m", "--variant", "")),
            Golden(
                options={"async_scheduling": True, "chunked_prefill": False, "max_num_seqs": 8, "speed": 2.5},
                fixed={"max_num_seqs": 64, "kv_tokens": 4096},
                variant="fp8",
                model="mock/model",
                port=1234,
                argv=(
                    *("--port", "1234", "--model", "mock/model", "--variant", "fp8"),
                    *("--async-scheduling", "--no-chunked-prefill", "--max-num-seqs", "8", "--speed", "2.5"),
                ),
            ),
        )

    explained = (
        ("mock: [Errno 98] Address already in use", 1, "port-in-use"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1, "out-of-memory"),
        ("CUDA error: out of memory while serving a batch", 1, "out-of-memory-under-load"),
        ("mock_server: error: unrecognized arguments: --nonsense", 2, "unknown-option"),
        ("mock: cannot load the model: not a file of weights", 1, "bad-model"),
        ("mock: refused to start", 1, "refused"),
        ("Traceback (most recent call last):\nRuntimeError: boom", 1, "crashed"),
        ("", -9, "killed"),
        ("", -4, "unsupported-cpu"),
    )
