"""What every engine must keep to: subclass EngineContract as `Test...` and give `engine` and `golden`."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from servetune.engines.base import CAUSES, Engine, Explanation
from servetune.engines.catalogue import axis_values, value_error
from servetune.records import Config, EngineSpec, HostFacts, Installed, Missing, OptionSpec, OptionValue, Record

HOST = HostFacts(
    hostname="host",
    os="Linux",
    kernel="6.1",
    cpu="a processor",
    cores=8,
    memory_gib=64.0,
    memory_available_gib=60.0,
    cpu_flags=("avx", "avx2", "fma", "f16c", "bmi2"),
    python="3.11",
    servetune="0",
)


class Golden(Record, frozen=True, kw_only=True):
    """One config and the command line that it must give after `installed.argv`."""

    options: dict[str, OptionValue]
    model: str
    port: int
    argv: tuple[str, ...]
    fixed: dict[str, OptionValue] = msgspec.field(default_factory=dict)
    variant: str = ""


class EngineContract:
    """Tests that hold for any engine."""

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine under test."""

    @property
    @abstractmethod
    def golden(self) -> tuple[Golden, ...]:
        """Command lines that must not change unnoticed."""

    ready_answers: tuple[tuple[int, bytes], ...] = ((200, b'{"status": "ok"}'),)
    unready_answers: tuple[tuple[int, bytes], ...] = ((503, b"{}"), (404, b""), (500, b""))
    explained: tuple[tuple[str, int | None, str], ...] = ()
    """(log, exit code, cause) that explain() must find."""

    def _options(self) -> list[OptionSpec]:
        return list(self.engine.catalogue().options.values())

    def _spec(self, golden: Golden) -> EngineSpec:
        return EngineSpec(name=self.engine.name, options=golden.fixed)

    def _installed(self) -> Installed:
        return Installed(engine=self.engine.name, version="1", argv=("program",), how="in a test")

    def test_its_catalogue_is_its_own(self) -> None:
        """The catalogue loads, names the engine, and each option by its key."""
        catalogue = self.engine.catalogue()
        assert catalogue.engine == self.engine.name
        assert all(name == option.name for name, option in catalogue.options.items())

    def test_every_option_says_what_it_is(self) -> None:
        """Each option has a doc, a family, an effect, and accepts its default."""
        for option in self._options():
            assert option.doc.strip(), option.name
            assert option.family.strip(), option.name
            assert option.effect.strip(), option.name
            assert option.default is None or value_error(option, option.default) is None, option.name

    def test_every_value_worth_trying_is_accepted(self) -> None:
        """What the catalogue proposes as an axis is valid."""
        for option in self._options():
            problems = [value_error(option, value) for value in axis_values(option)]
            assert problems == [None] * len(problems), option.name

    def test_command_lines_are_golden(self) -> None:
        """Each golden config gives exactly its command line."""
        for golden in self.golden:
            config = Config(engine=self.engine.name, variant=golden.variant, options=golden.options)
            command = self.engine.command(
                config, spec=self._spec(golden), installed=self._installed(), model=golden.model, port=golden.port
            )
            assert command.argv == ("program", *golden.argv)

    def test_commands_depend_on_their_arguments_only(self) -> None:
        """The same config gives the same command twice."""
        golden = self.golden[0]
        config = Config(engine=self.engine.name, variant=golden.variant, options=golden.options)
        first, second = (
            self.engine.command(
                config, spec=self._spec(golden), installed=self._installed(), model=golden.model, port=golden.port
            )
            for _ in range(2)
        )
        assert first == second

    def test_readiness_is_read_from_the_answer(self) -> None:
        """Answers of a ready and of a loading server are told apart."""
        assert all(self.engine.is_ready(status, body) for status, body in self.ready_answers)
        assert not any(self.engine.is_ready(status, body) for status, body in self.unready_answers)
        assert self.engine.ready_path.startswith("/")

    def test_a_silent_running_engine_needs_no_explanation(self) -> None:
        """Nothing is made up where nothing failed."""
        assert self.engine.explain("", None) is None

    def test_failures_are_explained(self) -> None:
        """Each known log leads to its cause, with a line of that log as evidence."""
        for log, exit_code, cause in self.explained:
            found = self.engine.explain(log, exit_code)
            assert isinstance(found, Explanation), log
            assert (found.cause, bool(found.evidence.strip())) == (cause, True), log
            assert found.cause in CAUSES

    def test_it_is_found_or_says_what_to_do(self) -> None:
        """find() answers with a version, or with a reason and a remedy."""
        found = self.engine.find(EngineSpec(name=self.engine.name))
        if isinstance(found, Missing):
            assert found.reason
            assert found.remedy
        else:
            assert found.argv
            assert found.version

    def test_the_defaults_pass_preflight_on_a_large_host(self) -> None:
        """A host with room and a modern processor is not refused."""
        config = Config(engine=self.engine.name)
        assert self.engine.preflight(config, model=None, host=HOST) is None
