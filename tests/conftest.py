"""Settings of every test: a scrubbed environment, an own lock and an own cache."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never see the user's keys, proxies, lock or cache."""
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    own = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("SERVETUNE_LOCK", str(own / "measure.lock"))
    monkeypatch.setenv("SERVETUNE_CACHE", str(own / "cache"))
