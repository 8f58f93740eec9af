"""`Arguments`: those of `Graphed`, checked, and what follows from them alone.

How calls map to slots, the device and the largest sizes are read off an example or the slots. Made by the facade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ostinato.errors import ConfigError
from ostinato.runtime.buffers import NUM_REQS, NUM_TOKENS, CallLayout, Sizes, Slot
from ostinato.runtime.capture import as_device
from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import CostTable
from ostinato.runtime.keys import CaptureSupport, GraphKey
from ostinato.runtime.nest import leaves, tensors
from ostinato.runtime.planning import largest_size
from ostinato.runtime.qualify import ShadowOwner
from ostinato.telemetry import Sink

__all__ = ["Arguments", "check_budget", "check_costs", "check_overlap"]


_HOLDERS = (torch.Tensor, torch.nn.Module, torch.Generator)
"""What state consists of, in the end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """As the user of `Graphed` gave them; see there.

    Raises:
        ConfigError: a value of a wrong type, neither or both of example and slots, or slots that count requests and
            no limit of these.
    """

    fn: Callable[..., Any]
    example: tuple[Any, ...] | None
    example_kwargs: dict[str, Any] | None
    slots: Mapping[str, Slot] | None
    config: GraphConfig
    device: torch.device | str | None
    capture_support: CaptureSupport
    state: Any
    prepare: Callable[[GraphKey], None] | None
    after_warm_up: Callable[[], None] | None
    shadow: ShadowOwner | None
    sinks: Sequence[Sink]

    def __post_init__(self) -> None:
        example, slots = self.example, self.slots
        if example is not None and not isinstance(example, tuple):
            raise ConfigError(f"example is a {type(example).__name__}", fix="pass a tuple of arguments: example=(x,)")
        if not callable(self.fn):
            raise ConfigError(
                f"a value of type {type(self.fn).__name__} cannot be called", fix="pass a function or a module"
            )
        if not isinstance(self.capture_support, CaptureSupport):
            raise ConfigError(f"capture_support is {self.capture_support!r}", fix="pass a CaptureSupport")
        if slots is not None and not (
            isinstance(slots, Mapping) and slots and all(isinstance(slot, Slot) for slot in slots.values())
        ):
            raise ConfigError("slots map names to Slot(...)", fix='pass slots={"x": Slot(shape=(None, 8), dtype=...)}')
        if not isinstance(self.config, GraphConfig):
            raise ConfigError(f"config is a {type(self.config).__name__}", fix="pass GraphConfig(...)")
        if self.state is not None and not any(isinstance(leaf, _HOLDERS) for _, leaf in leaves(self.state)):
            raise ConfigError(
                f"state is a {type(self.state).__name__} with no tensor in it",
                fix="pass the module or the tensors themselves, not names of them: what is not there is not watched",
            )
        has_example = example is not None or self.example_kwargs is not None
        if has_example == (slots is not None):
            raise ConfigError("give either example=(...) or slots={...}", fix="pass one example call, or one Slot each")

    @cached_property
    def layout(self) -> CallLayout:
        """Of the example call, or of one positional tensor a slot."""
        if self.slots is not None:
            return CallLayout.from_slots(self.slots)
        return CallLayout.from_example(self.fn, self.example or (), self.example_kwargs or {})

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Of the example, in the order of the slots."""
        return list(tensors((self.example, self.example_kwargs)))

    def find_device(self) -> torch.device:
        """The device that was named, or that of the example's tensors, or the CPU; raises what `as_device` does."""
        if self.device is not None:
            return as_device(self.device)
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def find_max_sizes(self) -> Sizes:
        """The most that a step may hold.

        Raises:
            ConfigError: it is not told, or slots count requests and nothing limits these.
        """
        num_rows = next((tensor.shape[0] for tensor in self.tensors if tensor.dim() > 0), None)
        max_size, max_num_reqs = largest_size(self.config, num_rows), self.config.max_num_reqs
        counting = [name for name, slot in self.layout.slots.items() if slot.axis == NUM_REQS]
        if counting and max_num_reqs is None:
            raise ConfigError(f"slots {counting} count requests", fix="set GraphConfig(max_num_reqs=...)")
        return {NUM_TOKENS: max_size, NUM_REQS: max_num_reqs or max_size}


def check_budget(seconds: float) -> None:
    """Raise `ConfigError` unless ``seconds``, to measure for, is a number above 0."""
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigError(f"budget_seconds is {seconds!r}", fix="use a number of seconds above 0")


def check_overlap(overlap: object) -> None:
    """Raise `ConfigError` unless ``overlap`` is true or false."""
    if not isinstance(overlap, bool):
        fix = "use False if each step's outputs are read before the next one is launched, else True"
        raise ConfigError(f"overlap is {overlap!r}", fix=fix)


def check_costs(costs: object) -> None:
    """Raise `ConfigError` unless ``costs`` is a `CostTable`."""
    if not isinstance(costs, CostTable):
        raise ConfigError(f"costs is a {type(costs).__name__}", fix="pass a CostTable, of measure() or read_costs()")
