"""`diagnose`: examine a callable on its example and say what blocks capture, where, and what mends it.

Runs it several times: once plainly, twice under the probe, on both halves of the batch, and in trial captures.
State that it writes is written as often. Knows no file, command or table; `render` and the command line do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ostinato.errors import TargetError, UnknownNameError
from ostinato.runtime.breaks import handling_breaks
from ostinato.runtime.doctor.compare import Difference, differences
from ostinato.runtime.doctor.findings import Diagnosis
from ostinato.runtime.doctor.frames import frames_of_error
from ostinato.runtime.doctor.judge import findings, judge, worst
from ostinato.runtime.doctor.probe import call_target, probe
from ostinato.runtime.doctor.record import Run
from ostinato.runtime.doctor.trial import MODES, Example
from ostinato.runtime.doctor.trials import Trials
from ostinato.runtime.keys import Compiler, Partition
from ostinato.runtime.nest import map_tensors, tensors
from ostinato.runtime.ops import BlockReason

__all__ = ["diagnose"]

_UNREPEATABLE = {BlockReason.RANDOM_STATE, BlockReason.LIVE_STATE}


def diagnose(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    device: torch.device | str | None = None,
    modes: Sequence[str] = tuple(MODES),
    partition: str = "fx",
    compiler: str = "none",
    varies_rows: bool = True,
) -> Diagnosis:
    """What stands in the way of capturing ``fn(*args, **kwargs)``, op by op, and which breaks help.

    ``fn`` is called a dozen times or so, on copies of the tensors in ``args`` and ``kwargs``, without gradients.

    Args:
        fn: the callable; its tensors of the batch have one row a token (or request) in dimension 0.
        args, kwargs: an example call. Tensors as long in dimension 0 as the first one share its batch axis.
        device: where it runs; by default where the example's tensors are.
        modes: which of "full", "piecewise" and "breakable" to try. With "full" alone, declared breaks are judged as
            the plain calls that they are in a full graph.
        partition: of "piecewise"; with "breakable" that is tried as "breakable" itself.
        compiler: what compiles the work of full graphs and of the pieces of fx.
        varies_rows: whether ``fn`` also takes the halves of the batch, and its rows in another order. What
            depends on the batch's data can only be found so.

    Raises:
        TargetError: the callable fails on its example all by itself.
        UnknownNameError: no such mode, partition or compiler.
        UnsupportedPartitionError: Inductor's kernels for this device cannot be captured.
    """
    named = [("mode to try", mode, list(MODES)) for mode in modes]
    named += [("partition", partition, [*Partition]), ("compile", compiler, [*Compiler])]
    for what, name, valid in named:
        if name not in valid:
            raise UnknownNameError.of(what, name, valid)
    if partition == Partition.BREAKABLE:
        modes = tuple(dict.fromkeys("breakable" if mode == "piecewise" else mode for mode in modes))
    example = _example(fn, args, dict(kwargs or {}), device)
    example = replace(
        example,
        varies_rows=varies_rows and example.num_rows > 1,
        honours_breaks=set(modes) != {"full"},  # a full graph inlines them
    )
    notes: list[str] = []
    with torch.no_grad():
        _run_plainly(example)
        first, second = _probe(example, example.copied()), _probe(example, example.copied())
        from_call_to_call = list(differences(first, second))
        judged = judge(first.records, second.records, [*from_call_to_call, *_half_differences(example, notes)])
        compares = not from_call_to_call and not any(one.rule and one.rule.reason in _UNREPEATABLE for one in judged)
        if not compares:
            notes.append("replays were not compared with eager: the callable draws random numbers or has state")
        trials = Trials(
            example,
            judged,
            first,
            modes=modes,
            partition=Partition(partition),
            compiler=Compiler(compiler),
            compares=compares,
        )
        trials.run()
    ops = findings(trials.judged)
    return Diagnosis(
        verdict=worst(ops),
        ops=ops,
        suggested_breaks=trials.suggested,
        modes=trials.outcomes,
        advice=tuple(trials.advice),
        notes=tuple(notes),
        num_ops=len(first.records),
    )


def _example(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device | str | None,
) -> Example:
    given = list(tensors((args, kwargs)))
    if device is not None:
        args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.to(device))
    num_rows = next((t.shape[0] for t in given if t.dim() > 0), 1)
    where = torch.device(device) if device is not None else given[0].device if given else torch.device("cpu")
    return Example(fn, args, kwargs, num_rows, where)


def _run_plainly(example: Example) -> None:
    """Once without any mode: what fails here has nothing to do with graphs, and what is lazy is done."""
    args, kwargs = example.copied()
    try:
        with handling_breaks(None):
            call_target(example.fn, args, kwargs)
    except Exception as error:
        place = frames_of_error(error, call_target.__code__).place
        raise TargetError(
            f"the callable fails on its example by itself: {type(error).__name__}: {error}",
            fix="make it run eagerly first; the doctor looks at callables that do",
            at="unknown" if place is None else f"{place.file}:{place.line}",
        ) from error


def _probe(example: Example, call: tuple[tuple[Any, ...], dict[str, Any]]) -> Run:
    return probe(example.fn, *call, example.device, honours_breaks=example.honours_breaks)


def _half_differences(example: Example, notes: list[str]) -> list[Difference]:
    """Between the two halves of the batch: they are of one size, so only their data can tell them apart."""
    if not example.varies_rows:
        notes.append("what depends on the batch's data was not looked for: there are no rows to vary")
        return []
    half = example.num_rows // 2
    try:
        one, other = _probe(example, example.half(0)), _probe(example, example.half(1))
    except Exception as error:  # it may rightly insist on its batch size
        notes.append(
            f"what depends on the batch's data was not looked for: {half} of {example.num_rows} rows fail with "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        )
        return []
    return list(differences(one, other))
