"""The Hugging Face hub as a source, with a bound on how long an unreachable one may take.

One of the sources of `resolve`. Downloads go to the hub library's own cache, where other programs
find them too. ``OSTINATO_OFFLINE=1`` or ``HF_HUB_OFFLINE=1`` skips the network.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostinato.engine.text.optional_import import require
from ostinato.engine.weights.model_files import open_folder
from ostinato.engine.weights.progress import ProgressReporter, reporting
from ostinato.engine.weights.tensor_files import checkpoint_bytes
from ostinato.errors import CheckpointError, EngineError, ModelNotFoundError

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_REACH_SECONDS = 4.0  # a hub that has not answered by then is taken as not reachable
_PURPOSE = "use the Hugging Face hub"
_DESCRIBING = re.compile(r"[^/]+\.(json|jinja)")
_WEIGHTS = re.compile(r"(?!consolidated)[^/]+\.safetensors")  # "consolidated" repeats the weights under other names
_OFF = {"", "0", "false", "no", "off"}


def is_offline(*variables: str) -> bool:
    """Whether one of these environment variables is set to something other than no."""
    return any(os.environ.get(variable, "").strip().lower() not in _OFF for variable in variables)


def find_downloaded(name: str, *, needs_weights: bool) -> Path:
    """The folder of an earlier download, when it is whole. Uses no network.

    Raises:
        ModelNotFoundError: not downloaded, or only in part.
    """
    library = _library(name)
    try:
        directory = Path(library.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError("not downloaded") from error
    try:
        open_folder(directory, source="", needs_weights=needs_weights)
        if needs_weights:
            checkpoint_bytes(directory)
    except CheckpointError as error:
        raise ModelNotFoundError(f"downloaded in part: {error.message}") from error
    return directory


def download(name: str, *, needs_weights: bool, progress: ProgressReporter | None) -> Path:
    """Download what the engine reads of a hub model and return its folder.

    Raises:
        ModelNotFoundError: offline, not reachable within a few seconds, no such model, or no access to it.
    """
    library = _library(name)
    if is_offline("OSTINATO_OFFLINE", "HF_HUB_OFFLINE"):
        raise ModelNotFoundError("skipped, since OSTINATO_OFFLINE or HF_HUB_OFFLINE is set")
    info = _within(
        _REACH_SECONDS, lambda: library.HfApi().model_info(name, timeout=_REACH_SECONDS, files_metadata=True)
    )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    chosen = [file for file in sizes if _DESCRIBING.fullmatch(file) or (needs_weights and _WEIGHTS.fullmatch(file))]
    if "config.json" not in chosen:
        raise ModelNotFoundError("the repository has no config.json")
    directory: Path | None = None
    with reporting(progress, f"downloading {name}", sum(sizes[file] for file in chosen), "bytes") as reporter:
        for file in chosen:
            try:
                directory = Path(library.hf_hub_download(name, file, revision=info.sha)).parent
            except (OSError, ValueError) as error:
                raise ModelNotFoundError(f"the download of {file} failed: {_first_line(error)}") from error
            reporter.advance(sizes[file])
    assert directory is not None  # config.json is among the chosen
    return directory


def _library(name: str) -> Any:
    if not _NAME.fullmatch(name):
        raise ModelNotFoundError(f"{name!r} is not a hub name")
    try:
        return require("huggingface_hub", _PURPOSE)
    except EngineError as error:
        # Not having the library rules out this source, not the ones after it.
        raise ModelNotFoundError(f"{error.message}: {error.fix}") from error


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Run a network call on its own thread, so that a resolver which hangs cannot hold up the start.

    Raises:
        ModelNotFoundError: the call failed or did not end in time.
    """
    outcome: list[Any] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # the hub library leaks the errors of its HTTP client
            failure.append(error)

    thread = threading.Thread(target=run, name="ostinato-hub-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    if failure:
        raise ModelNotFoundError(f"{type(failure[0]).__name__}: {_first_line(failure[0])}") from failure[0]
    raise ModelNotFoundError(f"no answer within {seconds:g} s")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no details")
