"""`BreakStep`: one break of a captured plan, made at capture and run at every replay.

It owns its arguments (a weakly held one could be recycled by a later, smaller key), checks what the function
returns against what it returned at capture, and hands tensors over at fixed addresses, tails cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ostinato.errors import BreakOutputError
from ostinato.runtime.breaks import BreakPoint, handling_breaks
from ostinato.runtime.buffers import BridgePool
from ostinato.runtime.nest import leaves, map_tensors, skeleton, tensors
from ostinato.runtime.runners.break_arguments import BreakArgument
from ostinato.runtime.runners.break_record import BreakRecord
from ostinato.runtime.runners.layout import RowLayout

__all__ = ["BreakStep", "break_inputs", "observe_break"]


def observe_break(
    layout: RowLayout, index: int, point: BreakPoint, args: Any, kwargs: Any, result: Any, num_rows: int
) -> None:
    """Let ``layout`` see what break number ``index`` of a plan hands over."""
    for position, tensor in enumerate(tensors((result, point.mutated_arguments(args, kwargs)))):
        layout.observe((index, position), tensor, num_rows)


def break_inputs(point: BreakPoint, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors in a call of ``point`` that it does not write."""
    written = {id(t) for t in point.mutated_arguments(args, kwargs)}
    return [t for t in tensors((args, kwargs)) if id(t) not in written]


class BreakStep:
    """A break between two segments."""

    def __init__(
        self,
        point: BreakPoint,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        index: int,
        num_rows: int,
        layout: RowLayout,
        bridges: BridgePool,
        next_bridge: int,
        keep: Callable[[torch.Tensor], torch.Tensor],
        arguments: Sequence[BreakArgument] = (),
    ) -> None:
        self.point = point
        self.arguments = tuple(arguments)
        """Whose memory the tensors that it is given are, at capture."""
        self._fn = point.fn
        self._args, self._kwargs = map_tensors((args, kwargs), keep)
        with handling_breaks(None):
            result = point.fn(*args, **kwargs)
        observe_break(layout, index, point, args, kwargs, result, num_rows)
        known = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
        self.bridges: list[torch.Tensor] = []
        self._is_bridge: list[bool] = []  # one entry a tensor of the result

        def to_bridge(tensor: torch.Tensor) -> torch.Tensor:
            self._is_bridge.append(tensor.untyped_storage().data_ptr() not in known)
            if not self._is_bridge[-1]:
                return tensor  # the break returns one of its arguments: the address is fixed already
            bridge = bridges.take(next_bridge + len(self.bridges), tensor)
            bridge.copy_(tensor)
            self.bridges.append(bridge)
            return bridge

        self._for_program = map_tensors(result, to_bridge)
        handed = map_tensors(self._for_program, keep)  # from here on an address, like the arguments
        self._gives_nothing = result is None
        self._skeleton = skeleton(result)
        self._handed_leaves = [leaf for _, leaf in leaves(handed)]
        self.handed = list(tensors((handed, point.mutated_arguments(self._args, self._kwargs))))
        """What the callable goes on with and what the break has written, at the addresses of the plan."""
        self.is_cleared = [
            not point.clears_tail and layout.is_batch_major((index, position)) for position in range(len(self.handed))
        ]
        """Whether the rows of each past the live ones are zeroed after the function, which does not do so itself."""
        self._cleared = [t for t, is_cleared in zip(self.handed, self.is_cleared, strict=True) if is_cleared]

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that the break is given and does not write, at the addresses of the plan."""
        return break_inputs(self.point, self._args, self._kwargs)

    def note_in(self, record: BreakRecord) -> None:
        """Note in ``record`` the numbers and strings that every replay gives the break."""
        record.add(self.point, self._args, self._kwargs)

    def hand_over(self) -> Any:
        """What the callable goes on with at capture. Given out once: the step must not keep it alive."""
        handed, self._for_program = self._for_program, None
        return handed

    def run(self, num_live: int, num_rows: int) -> None:
        """Run the function, check its results, move them to their bridges, clear rows past ``num_live``.

        Raises:
            BreakOutputError: a result differs from capture in structure, rank, shape, dtype, device or value,
                or was an argument then and is another tensor now.
        """
        result = self._fn(*self._args, **self._kwargs)
        if result is not None or not self._gives_nothing:  # most breaks write where they are told
            self._check_and_hand_over(result)
        if num_live < num_rows:
            for tensor in self._cleared:
                tensor[num_live:].zero_()

    def _check_and_hand_over(self, result: Any) -> None:
        is_bridge = iter(self._is_bridge)
        if skeleton(result) != self._skeleton:
            raise self._differs("result", self._skeleton, skeleton(result))
        for handed, (path, value) in zip(self._handed_leaves, leaves(result), strict=True):
            if isinstance(value, torch.Tensor):
                self._hand_over(path, handed, value, is_bridge=next(is_bridge))
            elif value is not handed and value != handed:
                raise self._differs(f"result{path}", repr(handed), repr(value))

    def _hand_over(self, path: str, handed: torch.Tensor, value: torch.Tensor, *, is_bridge: bool) -> None:
        if value.shape != handed.shape or value.dtype != handed.dtype or value.device != handed.device:
            raise self._differs(f"result{path}", _spec(handed), _spec(value))
        if value.data_ptr() == handed.data_ptr() and value.stride() == handed.stride():
            return
        if not is_bridge:  # a copy would overwrite the argument, which other segments may read
            raise self._differs(f"result{path}", "its argument, as at capture", "another tensor")
        handed.copy_(value)

    def _differs(self, what: str, expected: Any, got: Any) -> BreakOutputError:
        return BreakOutputError(
            f"break {self.point.name!r} returned another {what} than at capture",
            fix="return the captured shape, dtype, device and structure every time; pad inside the break if need be",
            source=self.point.source,
            expected=expected,
            got=got,
        )


def _spec(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
