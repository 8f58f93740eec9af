"""From a model's name to a model on its device, with tokenizer and resolved settings.

The order matters: files first (cheap to refuse), then settings, then memory, then weights. These may still be on their
way while an engine is made of the model, as long as nobody needs their values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ostinato.engine.before_torch import begin_triton_key
from ostinato.engine.config import EngineConfig, resolve_engine_config
from ostinato.engine.execution.memory_budget import check_budget_holds_weights, check_weights_fit
from ostinato.engine.execution.stored_costs import settle_partition
from ostinato.engine.models import DecoderModel, ModelConfig, build_model
from ostinato.engine.models.footprint import footprint_of
from ostinato.engine.text import Tokenizer
from ostinato.engine.weights import (
    ModelFiles,
    ProgressReporter,
    TensorCopies,
    checkpoint_dtype,
    checkpoint_id,
    iter_safetensors,
    resolve_model,
)
from ostinato.errors import CheckpointError, DeviceUnavailableError, OutOfMemoryError

__all__ = ["LoadedModel", "find_device", "fitting_tensors", "load_model"]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run, or whose weights are on their way, and what was decided on the way."""

    model: DecoderModel
    tokenizer: Tokenizer | None
    """None for dummy weights without tokenizer files: such an engine takes and gives token ids."""
    config: EngineConfig
    reasons: dict[str, str]
    """Field -> why "auto" became what it is."""
    device: torch.device
    dtype: torch.dtype
    weights_id: str
    """Tells these weights from others of the same shapes: see `checkpoint_id`; ``"dummy"`` for dummy weights."""
    copies: TensorCopies | None = None
    """Of the weights, where they were not waited for."""

    def await_weights(self) -> None:
        """Return once all weights are there; at once where they are.

        Raises:
            OutOfMemoryError: what their copying takes besides does not fit.
        """
        if self.copies is not None:
            with _memory_refused():
                self.copies.wait()

    def give_up_weights(self) -> None:
        """Begin no more copies, for a model that will not be used. Once the weights are there it does nothing."""
        if self.copies is not None:
            self.copies.close()


def find_device(name: str) -> torch.device:
    """The device that ``name`` means here: "auto" is CUDA where there is one.

    Kernels are launched on a thread's current device, wherever their tensors are: so another one is refused.

    Raises:
        DeviceUnavailableError: CUDA was asked for and is absent, has no such index, or has another current device.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceUnavailableError(
            f"device {name} asked for, but torch finds no CUDA device", fix="use device='cpu' (simulated graphs)"
        )
    current = torch.cuda.current_device()
    number = name.partition(":")[2]  # not as torch reads it, to which cuda:256 is cuda:0
    index = int(number) if number else current
    if index >= torch.cuda.device_count():
        raise DeviceUnavailableError(
            f"there is no device {name}", fix=f"use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    if index != current:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # renumbers, where it is set
        outside = visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)
        raise DeviceUnavailableError(
            f"device {name} asked for, and the current device is cuda:{current}: kernels would be launched there",
            fix=f"set CUDA_VISIBLE_DEVICES={outside} in the environment and use device='cuda', "
            f"or call torch.cuda.set_device({index}) first",
        )
    return torch.device("cuda", index)


def load_model(
    config: EngineConfig,
    *,
    progress: ProgressReporter | None = None,
    waits: bool = True,
    budget_bytes: int | None = None,
) -> LoadedModel:
    """Find, build and fill the model that ``config`` names.

    Args:
        config: as the user has set it.
        progress: told of download and loading.
        waits: for the weights. If not, they are on their way afterwards, and the caller calls `await_weights` before
            any value counts, or `give_up_weights`; ``progress`` is told of the rest then.
        budget_bytes: for all that an engine will hold; weights that exceed it are not loaded.

    Raises:
        DeviceUnavailableError, ModelNotFoundError, CheckpointError, UnsupportedArchitectureError, ConfigError,
        OutOfMemoryError, UnwritableCacheError: as their names say; nothing is left allocated.
    """
    device = find_device(config.device)
    if device.type == "cuda":
        begin_triton_key()
    files = resolve_model(config.model, load_format=config.load_format, progress=progress)
    model_config = ModelConfig.from_hf(files.config)
    is_cuda = device.type == "cuda"
    resolved, reasons = resolve_engine_config(
        config, "cuda" if is_cuda else "cpu", model_config.max_model_len, checkpoint_dtype(files)
    )
    resolved, why = settle_partition(resolved, device, model_config)
    if why is not None:
        reasons["partition"] = why
    dtype: torch.dtype = getattr(torch, resolved.dtype)
    is_dummy = config.load_format == "dummy"
    weights_id = "dummy" if is_dummy else checkpoint_id(files.directory)
    max_len = resolved.max_model_len
    footprint = footprint_of(model_config, element_bytes=dtype.itemsize)
    if budget_bytes is not None:
        check_budget_holds_weights(footprint, resolved, budget_bytes)
    check_weights_fit(footprint.weight_bytes, device)
    tokenizer = _tokenizer(files, is_optional=is_dummy)
    copies: TensorCopies | None = None
    with _memory_refused():
        model = build_model(model_config, device=device, dtype=dtype, max_model_len=max_len)
        if is_dummy:
            model.init_dummy(config.seed)
            if tokenizer is not None:
                tokenizer.prepare()
        else:
            copies = _copying(model, files, tokenizer, waits=waits, progress=progress)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        config=resolved,
        reasons=reasons,
        device=device,
        dtype=dtype,
        weights_id=weights_id,
        copies=copies,
    )


def _copying(
    model: DecoderModel,
    files: ModelFiles,
    tokenizer: Tokenizer | None,
    *,
    waits: bool,
    progress: ProgressReporter | None,
) -> TensorCopies | None:
    """Begin to copy the weights, and prepare the text meanwhile; None where the copies were waited for."""
    copies = TensorCopies(fitting_tensors(model, files), progress=progress)
    try:
        if tokenizer is not None:
            tokenizer.prepare()
        if not waits:
            return copies
        copies.wait()
    except BaseException:  # an interrupt, too: nobody else knows of them yet
        copies.close()
        raise
    return None


@contextmanager
def _memory_refused() -> Iterator[None]:
    """Typed, while weights are allocated and filled."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError("the weights do not fit", fix="use a smaller model or dtype") from error


def fitting_tensors(model: DecoderModel, files: ModelFiles) -> list[tuple[Tensor, Tensor]]:
    """Each parameter of ``model``, or rows of it, and the mapped tensor that belongs there; nothing is written.

    Raises:
        CheckpointError: a file is broken, or the tensors do not fit the model.
    """
    fitting: list[tuple[Tensor, Tensor]] = []
    items = iter_safetensors(files.directory)
    model.load_weights(items, put=lambda target, tensor: fitting.append((target, tensor)))
    return fitting


def _tokenizer(files: ModelFiles, *, is_optional: bool) -> Tokenizer | None:
    try:
        return Tokenizer.from_directory(files.directory)
    except CheckpointError:
        if is_optional and not (files.directory / "tokenizer.json").exists():
            return None
        raise
