"""The hub: a loopback server that speaks as it does, no server, and what the user is told."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from servetune import hub
from servetune.errors import HostProblem, UserError

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b'{"a": 1}'}
COMMIT = "a" * 40


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Answers for the repository me/tiny; anything else does not exist."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:  # the library's name
        """Headers that describe one file."""
        self.do_GET()

    def do_GET(self) -> None:  # the library's name
        """A file, the description of the repository, or 404 with the hub's error codes."""
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if not path.startswith(("/me/tiny/", "/api/models/me/tiny")):
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            files = [{"type": "file", "path": file, "size": len(data), "oid": file} for file, data in FILES.items()]
            self._answer(200, json.dumps(files).encode(), {})
        elif path.startswith("/api/"):
            files = [{"rfilename": file} for file in FILES]
            self._answer(200, json.dumps({"id": "me/tiny", "sha": COMMIT, "siblings": files}).encode(), {})
        elif name == "broken":
            self._answer(403, b"", {})
        elif name in FILES:
            self._answer(200, FILES[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{name}"'})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A running fake hub, with an empty cache."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield point_at(monkeypatch, tmp_path, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, cache: Path, url: str) -> str:
    """Make the library use this address and this cache."""
    from huggingface_hub import hf_api  # noqa: PLC0415  # only to change its settings

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return url


def test_a_file_is_fetched_and_then_found_without_a_network(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second call needs no hub; nothing is printed."""
    path = hub.fetch_file("me/tiny", "tokenizer.json", remedy="r")
    assert path.read_bytes() == FILES["tokenizer.json"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.fetch_file("me/tiny", "tokenizer.json", remedy="r") == path
    assert capfd.readouterr() == ("", "")


def test_a_whole_repository_is_a_folder(endpoint: str) -> None:
    """Every file is there."""
    folder = hub.fetch_all("me/tiny", remedy="r")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES


def test_what_the_hub_does_not_have_is_the_users_mistake(endpoint: str) -> None:
    """A missing file, a missing repository and an impossible name."""
    with pytest.raises(UserError, match=r"me/tiny/none\.json: is not on the hub"):
        hub.fetch_file("me/tiny", "none.json", remedy="r")
    with pytest.raises(UserError, match="nobody/nothing: is not on the hub"):
        hub.fetch_all("nobody/nothing", remedy="r")
    with pytest.raises(UserError, match="is not on the hub"):
        hub.fetch_file("a..b/-x-", "f", remedy="r")


def test_a_hub_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing listens: the remedy is in the message, and no retries are waited for."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        point_at(monkeypatch, tmp_path, f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(HostProblem, match=r"me/tiny is not on this machine .* cannot be reached \(plug it in\)"):
            hub.fetch_all("me/tiny", remedy="plug it in")
        with pytest.raises(HostProblem, match=r"a/b/c is not on this machine .* cannot be reached \(plug it in\)"):
            hub.fetch_file("a/b", "c", remedy="plug it in")


def test_a_hub_that_fails_is_a_host_problem(endpoint: str) -> None:
    """A refusal without a reason is not the user's mistake."""
    with pytest.raises(HostProblem, match="plug it in"):
        hub.fetch_file("me/tiny", "broken", remedy="plug it in")


def test_a_proxy_is_trusted_to_reach_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a proxy only the request itself can tell."""
    point_at(monkeypatch, tmp_path, "https://hub.invalid")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert hub.is_reachable()


def test_a_repository_of_many_variants_is_not_fetched_whole() -> None:
    """A repository of GGUF files needs the name of one; one with safetensors does not."""
    with pytest.raises(UserError, match=r"choose one: a/b/q4\.gguf"):
        hub.refuse_many_variants("a/b", ["README.md", "q8.gguf", "q4.gguf"])
    hub.refuse_many_variants("a/b", ["model.safetensors", "q4.gguf"])
