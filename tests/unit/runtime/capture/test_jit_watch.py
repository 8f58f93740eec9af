"""A first compilation in a segment is refused by Triton's own hook. Triton itself is a stand-in here; see tests/gpu."""

import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from ostinato.errors import JitInCaptureError
from ostinato.runtime.breaks import recording
from ostinato.runtime.capture import select_backend
from ostinato.runtime.capture.jit_watch import refusing_jit


def call_hook(hook):
    """As Triton does on a miss of its cache."""
    if hook is None:
        return None
    info = SimpleNamespace(module="their.module", name="kernel", jit_function=None)
    return hook(key="k", repr="kernel[...]", fn=info, compile={}, is_manual_warmup=False, already_compiled=False)


@pytest.fixture
def triton(monkeypatch):
    """Triton as far as the hooks go, since 3.4."""
    triton = ModuleType("triton")
    triton.knobs = SimpleNamespace(runtime=SimpleNamespace(jit_cache_hook=None))
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.delitem(sys.modules, "triton.runtime.autotuner", raising=False)
    return triton


def test_without_triton_there_is_nothing_to_do(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.delitem(sys.modules, "triton.runtime.autotuner", raising=False)
    with recording(), refusing_jit():
        assert "triton" not in sys.modules


@pytest.fixture
def triton_to_come(tmp_path, monkeypatch):
    """Triton as far as the hooks go, installed and not imported."""
    files = {
        "__init__.py": "from triton import knobs, runtime\n",
        "knobs.py": "class runtime:\n    jit_cache_hook = None\n",
        "runtime/__init__.py": "from triton.runtime import autotuner\n",
        "runtime/autotuner.py": "class Autotuner:\n    base_fn = print\n    _bench = lambda self: [1.0]\n",
    }
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    for name, text in files.items():
        path = tmp_path / "triton" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: importlib.import_module("triton")
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]


def test_a_triton_that_comes_in_the_segment_is_asked_at_once(triton_to_come):
    backend = select_backend("cpu")
    with backend.phase(), backend.session():
        backend.begin()
        triton = triton_to_come()
        with pytest.raises(JitInCaptureError, match="'kernel' would compile") as caught:
            call_hook(triton.knobs.runtime.jit_cache_hook)
        with pytest.raises(JitInCaptureError, match="'print' would tune itself"):
            triton.runtime.autotuner.Autotuner()._bench()
        backend.end().close()
    assert "test_jit_watch.py" in caught.value.context["at"]
    assert triton.knobs.runtime.jit_cache_hook is None
    assert triton.runtime.autotuner.Autotuner()._bench() == [1.0]
    backend.close()


def test_a_triton_that_comes_after_the_segment_is_not_asked(triton_to_come):
    with recording(), refusing_jit():
        pass
    assert triton_to_come().knobs.runtime.jit_cache_hook is None


def test_a_first_compilation_names_the_kernel_and_the_line(triton):
    knobs = triton.knobs.runtime
    with recording(), refusing_jit(), pytest.raises(JitInCaptureError, match="'kernel' would compile") as caught:
        call_hook(knobs.jit_cache_hook)
    assert caught.value.context["kernel"] == "kernel"
    assert "test_jit_watch.py" in caught.value.context["at"]
    assert "warm_up" in caught.value.fix
    assert knobs.jit_cache_hook is None


def test_only_the_thread_that_records_is_refused(triton):
    knobs, seen = triton.knobs.runtime, []
    with recording(), refusing_jit():
        thread = threading.Thread(target=lambda: seen.append(call_hook(knobs.jit_cache_hook)))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_hook_that_was_there_still_decides(triton):
    knobs, calls = triton.knobs.runtime, []

    def theirs(**kwargs):
        calls.append(kwargs["key"])
        return True

    knobs.jit_cache_hook = theirs
    with refusing_jit():  # nothing is recorded: as in a break
        assert call_hook(knobs.jit_cache_hook) is True
    assert calls == ["k"]
    assert knobs.jit_cache_hook is theirs


def test_a_hook_that_came_meanwhile_is_left_alone(triton):
    def theirs(**_):
        return None

    with refusing_jit():
        triton.knobs.runtime.jit_cache_hook = theirs
    assert triton.knobs.runtime.jit_cache_hook is theirs


def test_older_triton_has_its_hook_on_a_class(triton):
    class JITFunction:
        cache_hook = None

    del triton.knobs
    triton.JITFunction = JITFunction
    with recording(), refusing_jit(), pytest.raises(JitInCaptureError):
        call_hook(JITFunction.cache_hook)
    assert JITFunction.cache_hook is None


def test_tuning_is_refused_before_it_measures(triton, monkeypatch):
    measured = []

    class Autotuner:
        base_fn = staticmethod(call_hook)

        def _bench(self, *args, config, **meta):
            measured.append(config)
            return [1.0]

    module = ModuleType("triton.runtime.autotuner")
    module.Autotuner = Autotuner
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)
    original = Autotuner._bench
    with refusing_jit():
        assert Autotuner()._bench(1, config="a") == [1.0]
        with recording(), pytest.raises(JitInCaptureError, match="'call_hook' would tune itself") as caught:
            Autotuner()._bench(1, config="b")
    assert measured == ["a"]
    assert "test_jit_watch.py" in caught.value.context["at"]
    assert Autotuner._bench is original


@pytest.mark.parametrize("broken", [None, SimpleNamespace(), SimpleNamespace(runtime=SimpleNamespace())])
def test_a_triton_without_known_hooks_is_left_alone(triton, broken):
    triton.knobs = broken
    with recording(), refusing_jit():
        pass
