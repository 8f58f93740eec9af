"""Which runner serves each runtime mode, by partition and compiler."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ostinato.runtime.buffers import BridgePool
from ostinato.runtime.capture import CaptureBackend
from ostinato.runtime.keys import Compiler, Partition, RuntimeMode
from ostinato.runtime.ops import ATTENTION_OPS
from ostinato.runtime.runners.breakable import BreakableRunner
from ostinato.runtime.runners.full import FullRunner
from ostinato.runtime.runners.runner import Runner

__all__ = ["make_runners"]


def make_runners(
    backend: CaptureBackend,
    *,
    partition: Partition,
    compiler: Compiler,
    compile_max_tokens: int | None,
    allow_unbroken_attention: bool,
    owns_arguments: bool,
    bridges: BridgePool,
    before_trace: Callable[[], None] | None = None,
    runtime_modes: Collection[RuntimeMode] = tuple(RuntimeMode),
) -> dict[RuntimeMode, Runner]:
    """A runner for each runtime mode that replays.

    Args:
        compiler: INDUCTOR compiles full graphs, and with FX the pieces between breaks.
        compile_max_tokens: larger full graphs are captured uncompiled. None: no limit.
        before_trace: see `CompiledRunner`.
        runtime_modes: those that record. Others get a runner that loads no compiler and asks for none.

    Raises:
        UnsupportedPartitionError: a compiler is asked for that this machine does not have.
    """
    forbid = frozenset[str]() if allow_unbroken_attention else ATTENTION_OPS
    full: Runner = FullRunner(backend)
    piecewise: Runner = BreakableRunner(
        backend,
        bridges=bridges,
        forbid=forbid,
        owns_arguments=owns_arguments,
    )
    if partition is not Partition.BREAKABLE and RuntimeMode.PIECEWISE in runtime_modes:
        from ostinato.runtime.runners.piecewise import CompiledRunner

        piecewise = CompiledRunner(
            backend, piecewise, partition=partition, compiler=compiler, before_trace=before_trace, forbid=forbid
        )
    if compiler is Compiler.INDUCTOR and RuntimeMode.FULL in runtime_modes:
        from ostinato.runtime.runners.piecewise import CompiledRunner

        full = CompiledRunner(
            backend,
            full,
            partition=Partition.INDUCTOR,
            max_tokens=compile_max_tokens,
            before_trace=before_trace,
        )
    return {RuntimeMode.FULL: full, RuntimeMode.PIECEWISE: piecewise}
