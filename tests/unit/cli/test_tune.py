"""Which study `servetune tune` runs, and which wishes it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from servetune import presets, studyfile
from servetune.cli.tune import tune
from servetune.errors import UserError


def test_an_endpoint_study_of_another_server_is_not_resumed(tmp_path: Path) -> None:
    """Figures of one server never pass for those of another."""
    begun = presets.for_endpoint("http://127.0.0.1:1", minutes=1)
    (tmp_path / "study.toml").write_text(studyfile.dump(begun))

    result = CliRunner().invoke(tune, ["--endpoint", "127.0.0.1:2/v1", "--out", str(tmp_path)])

    assert isinstance(result.exception, UserError)
    assert "another server" in str(result.exception)


@pytest.mark.parametrize("arguments", [[], ["--demo", "--endpoint", "http://127.0.0.1:1"], ["gone.gguf"]])
def test_a_wish_without_one_study_is_refused(arguments: list[str]) -> None:
    """Nothing, two things, or a file that is not there."""
    assert isinstance(CliRunner().invoke(tune, arguments).exception, UserError)
