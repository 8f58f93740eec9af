"""Which graphs share an executable, and which one of them it holds now. Device-independent; both backends use it.

An executable is what a device launches: made from a graph, it holds the graph's nodes and their parameters. Shared, it
serves all graphs of one topology at the same place of their plans, one at a time: a replay of another one updates it
first, which is a switch. Segments of one plan never share, or each replay of the plan would switch.

Who can share is found out at capture, by trying, both ways; so a switch in a step does what has been done before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ostinato.errors import CaptureError

__all__ = ["ExecutableCounts", "Executables", "Instance", "Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableCounts:
    """What graphs are launched by, now."""

    num_executables: int
    """Executables; as many as graphs that are not empty, unless some are shared."""
    num_nodes: int
    """Nodes in them; a device's memory for executables grows with it."""
    num_shared_groups: int
    """Executables that more than one graph uses."""
    num_switches: int
    """Updates at replay, since the backend was made."""

    def to_dict(self) -> dict[str, int]:
        """Plain values, by short names."""
        return {
            "count": self.num_executables,
            "nodes": self.num_nodes,
            "shared_groups": self.num_shared_groups,
            "switches": self.num_switches,
        }


class Instance(Protocol):
    """A device's executable."""

    def update(self, source: Any) -> bool:
        """Make it hold ``source``. False: it cannot, and may hold neither this nor what it held.

        Launches that are queued or running keep what they were launched with.
        """
        ...

    def launch(self) -> None:
        """Run what it holds on the current stream, without waiting."""
        ...

    def destroy(self) -> None:
        """Give it back."""
        ...


class Placement:
    """A graph's share of an executable."""

    def __init__(self, source: Any, executable: _Executable) -> None:
        self.source = source
        self._executable = executable

    def replay(self) -> None:
        """Launch the graph, after an update if the executable holds another.

        Raises:
            CaptureError: the device refuses the update, though it took it at capture.
        """
        self._executable.replay(self)

    def leave(self) -> None:
        """The graph is about to go. The last one takes the executable along."""
        self._executable.leave(self)


class _Executable:
    """One executable and the graphs that it serves."""

    def __init__(self, instance: Instance, num_nodes: int, place: list[_Executable]) -> None:
        self.num_nodes = num_nodes
        self.num_switches = 0
        self.placements: list[Placement] = []
        self._instance = instance
        self._loaded: Placement | None = None
        self._place = place
        # An update and the launch that is meant by it must not be torn apart by another thread's replay; nor may two
        # threads touch one executable or graph at once (CUDA: graph object thread safety).
        self._lock = threading.Lock()
        place.append(self)

    def found(self, source: Any) -> Placement:
        """The first placement, of the graph that the instance was made from."""
        self._loaded = Placement(source, self)
        self.placements.append(self._loaded)
        return self._loaded

    def join(self, source: Any) -> Placement | None:
        """A place for one more graph, or None if an update to it, or back again, is refused."""
        with self._lock:
            back = self._loaded or self.placements[0]
            self._loaded = None  # a refused update may leave anything: then the next replay updates
            if not (self._instance.update(source) and self._instance.update(back.source)):
                return None
            self._loaded = back
            self.placements.append(Placement(source, self))
            return self.placements[-1]

    def replay(self, placement: Placement) -> None:
        with self._lock:
            if self._loaded is not placement:
                self._loaded = None
                if not self._instance.update(placement.source):
                    raise CaptureError(
                        "the device refused to update a shared executable", fix="use executables='own', or recapture()"
                    )
                self._loaded = placement
                self.num_switches += 1
            self._instance.launch()

    def leave(self, placement: Placement) -> None:
        with self._lock:
            self.placements.remove(placement)
            if not self.placements:
                self._place.remove(self)
                self._instance.destroy()
            elif self._loaded is placement:  # let go of what the graph pins
                back = self.placements[-1]
                self._loaded = back if self._instance.update(back.source) else None


class Executables:
    """The executables of one backend.

    Args:
        instantiate: makes the device's executable from a graph.
        is_shared: False: every graph has its own, which the backend launches itself and only counts here.
    """

    def __init__(self, instantiate: Callable[[Any], Instance], *, is_shared: bool) -> None:
        self._instantiate = instantiate
        self._is_shared = is_shared
        self._has_drawn = False
        self._position = 0
        self._places: dict[int, list[_Executable]] = {}
        self._num_own = 0
        self._num_own_nodes = 0
        self._num_past_switches = 0

    def begin_plan(self) -> None:
        """The next graph is the first of a plan."""
        self._position = 0

    def note_drawn(self) -> None:
        """The callable draws random numbers, perhaps where no watch sees it: its graphs have their own from now on.

        Torch's replay hands a graph the generator's state, and a launch past it would draw the same numbers again.
        """
        self._has_drawn = True

    def place(self, source: Any, num_nodes: int, *, draws: bool) -> Placement | None:
        """The share of the plan's next graph, or None: it is to have its own. Empty graphs have no executable.

        Args:
            draws: whether the graph holds an op that draws random numbers.
        """
        position = self._position
        self._position += 1
        if num_nodes == 0:
            return None
        if not self._is_shared or draws or self._has_drawn:
            self._num_own += 1
            self._num_own_nodes += num_nodes
            return None
        place = self._places.setdefault(position, [])
        for executable in place:
            # The devices compare more than the number, but refuse what differs in it; so this saves useless tries.
            if executable.num_nodes == num_nodes and (placement := executable.join(source)) is not None:
                return placement
        return _Executable(self._instantiate(source), num_nodes, place).found(source)

    def close(self, placement: Placement | None, num_nodes: int) -> None:
        """A graph of so many nodes goes, and with it its share, or its own executable."""
        if placement is not None:
            executable = placement._executable
            placement.leave()
            if not executable.placements:
                self._num_past_switches += executable.num_switches
        elif num_nodes:
            self._num_own -= 1
            self._num_own_nodes -= num_nodes

    def counts(self) -> ExecutableCounts:
        """Counted now."""
        shared = [executable for place in list(self._places.values()) for executable in place]
        return ExecutableCounts(
            num_executables=self._num_own + len(shared),
            num_nodes=self._num_own_nodes + sum(executable.num_nodes for executable in shared),
            num_shared_groups=sum(len(executable.placements) > 1 for executable in shared),
            num_switches=self._num_past_switches + sum(executable.num_switches for executable in shared),
        )
