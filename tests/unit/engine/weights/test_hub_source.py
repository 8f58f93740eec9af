"""The hub as a source, against a stand-in for its library: offline, slow, partial and whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostinato.engine.weights import hub, resolve_model
from ostinato.errors import EngineError, ModelNotFoundError

NAME = "org/model"


class FakeHub:
    """Serves one repository from a folder; counts what is asked of it."""

    def __init__(self, remote: Path) -> None:
        self.remote = remote
        self.cached: Path | None = None
        self.asked: list[str] = []
        self.on_info: Any = lambda: None

    def snapshot_download(self, name: str, *, local_files_only: bool) -> str:
        assert name == NAME and local_files_only
        if self.cached is None:
            raise FileNotFoundError("no snapshot")
        return str(self.cached)

    def HfApi(self) -> FakeHub:
        return self

    def model_info(self, name: str, *, timeout: float, files_metadata: bool) -> SimpleNamespace:
        self.asked.append("info")
        self.on_info()
        files = [
            SimpleNamespace(rfilename=str(path.relative_to(self.remote)), size=path.stat().st_size)
            for path in sorted(self.remote.rglob("*"))
            if path.is_file()
        ]
        return SimpleNamespace(siblings=files, sha="abc")

    def hf_hub_download(self, name: str, file: str, *, revision: str) -> str:
        assert revision == "abc"
        self.asked.append(file)
        return str(self.remote / file)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, make_checkpoint) -> FakeHub:
    remote = make_checkpoint("remote")
    for extra in ("tokenizer.json", "chat_template.jinja", "consolidated.safetensors", "README.md", "onnx/config.json"):
        (remote / extra).parent.mkdir(exist_ok=True)
        (remote / extra).write_text("{}", encoding="utf-8")
    library = FakeHub(remote)
    monkeypatch.setattr(hub, "require", lambda module, purpose: library)
    monkeypatch.delenv("OSTINATO_OFFLINE")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return library


def test_only_what_the_engine_reads_is_downloaded(fake: FakeHub, progress) -> None:
    files = resolve_model(NAME, progress=progress)
    assert files.source == "Hugging Face hub" and files.has_weights
    assert set(fake.asked[1:]) == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    ((label, total, done, is_finished),) = progress.works
    assert label == "downloading org/model" and total == done > 0 and is_finished


def test_dummy_downloads_no_weights(fake: FakeHub) -> None:
    resolve_model(NAME, load_format="dummy")
    assert "model.safetensors" not in fake.asked and "config.json" in fake.asked


@pytest.mark.parametrize("variable", ["OSTINATO_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_nothing(fake: FakeHub, monkeypatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ModelNotFoundError, match="hub: skipped"):
        resolve_model(NAME)
    assert fake.asked == []


def test_zero_means_online(fake: FakeHub, monkeypatch) -> None:
    monkeypatch.setenv("OSTINATO_OFFLINE", "0")
    assert resolve_model(NAME).source == "Hugging Face hub"


def test_a_hub_that_hangs_is_given_up_soon(fake: FakeHub, monkeypatch) -> None:
    release = threading.Event()
    fake.on_info = lambda: release.wait(30)
    monkeypatch.setattr(hub, "_REACH_SECONDS", 0.2)
    begin = time.monotonic()
    with pytest.raises(ModelNotFoundError, match=r"no answer within 0\.2 s"):
        resolve_model(NAME)
    release.set()
    assert time.monotonic() - begin < 5


def test_a_refusal_is_told_in_its_first_line(fake: FakeHub) -> None:
    def refuse() -> None:
        raise PermissionError("401 gated repository\nlong explanation")

    fake.on_info = refuse
    with pytest.raises(ModelNotFoundError, match="PermissionError: 401 gated repository;") as caught:
        resolve_model(NAME)
    assert "long explanation" not in str(caught.value)


def test_an_earlier_download_is_used_without_asking(fake: FakeHub, monkeypatch) -> None:
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    fake.cached = fake.remote
    (fake.remote / "consolidated.safetensors").unlink()
    assert resolve_model(NAME).source == "Hugging Face hub's cache"
    assert fake.asked == []


def test_an_earlier_download_in_part_is_completed(fake: FakeHub, make_checkpoint) -> None:
    fake.cached = make_checkpoint("partial", weights=False)
    assert resolve_model(NAME).source == "Hugging Face hub"


def test_a_download_that_breaks_is_a_reason(fake: FakeHub, monkeypatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> str:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(fake, "hf_hub_download", broken)
    with pytest.raises(ModelNotFoundError, match=r"the download of .* failed: reset by peer"):
        resolve_model(NAME)


def test_without_the_library_the_reason_says_what_to_install(monkeypatch) -> None:
    def absent(module: str, purpose: str) -> None:
        raise EngineError("the library 'huggingface_hub' is needed", fix="pip install 'ostinato[engine]'")

    monkeypatch.setattr(hub, "require", absent)
    with pytest.raises(ModelNotFoundError, match=r"pip install 'ostinato\[engine\]'"):
        resolve_model(NAME)
