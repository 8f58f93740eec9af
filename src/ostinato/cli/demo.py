"""``ostinato demo``: a burst of requests on captured graphs, what dispatch did, and whether eager agrees.

The burst runs twice, on graphs and eagerly, and the greedy tokens must be the same: exit code 1 if not. Its
first step holds more tokens than the largest bucket on purpose, so that a fallback and its reason show.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.answers import Answer
from ostinato.cli.burst import Arrival, burst, play
from ostinato.cli.options import Compile, Device, Dispatch, Json, Mode, Model, Partition
from ostinato.cli.output import be_lenient, print_json, print_prompt, print_text
from ostinato.engine.before_torch import head_start
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig

if TYPE_CHECKING:
    from rich.console import Console

    from ostinato.cli.boards import Board
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["demo"]

EXIT_DIFFERENT = 1


@dataclass(frozen=True, kw_only=True)
class Played:
    """One engine's run of the burst."""

    answers: list[Answer]
    stats: dict[str, Any]
    step_seconds: list[float]

    @property
    def num_tokens(self) -> int:
        """Tokens that were generated."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def median_step_ms(self) -> float:
        """Wall time of the middle step. Not the mean: the first steps of a process still initialise things."""
        return 1000 * statistics.median(self.step_seconds)


def demo(
    model: Model = DEFAULT_MODEL,
    device: Device = "auto",
    mode: Mode = "full_and_piecewise",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    dispatch: Dispatch = "auto",
    max_tokens: Annotated[int, typer.Option(help="Most tokens for each answer.")] = 32,
    as_json: Json = False,
) -> None:
    """Show a burst of requests on graphs, and compare the answers with eager.

    Loads a small model, captures its graphs, answers eight chats of which some arrive while others run, and
    prints which graphs the steps replayed and why. Then the same chats run eagerly: the tokens must be the same.
    """
    config = dataclasses.replace(
        _config(model, device), mode=mode, partition=partition, compile=compiler, dispatch=dispatch
    )
    arrivals = burst(max_tokens)
    from rich.console import Console

    from ostinato.cli.boards import CountBoard, board_on
    from ostinato.cli.progress import progress_on_stderr

    be_lenient()
    console, progress = Console(file=sys.stdout), progress_on_stderr()
    eagerly = CountBoard(progress, "answer again, eagerly", len(arrivals))
    if as_json:
        graphs = _play(config, arrivals, progress, CountBoard(progress, "answer on graphs", len(arrivals)))
    else:
        typer.echo(f"{len(arrivals)} chats for {model}; some arrive while others run\n")
        graphs = _play(config, arrivals, progress, board_on(console, len(arrivals)))
        _print_run(graphs, console)
    eager = _play(dataclasses.replace(config, mode="none"), arrivals, progress, eagerly)
    pairs = zip(graphs.answers, eager.answers, strict=True)
    different = [number for number, (one, other) in enumerate(pairs, start=1) if one.token_ids != other.token_ids]
    if as_json:
        _print_json(graphs, eager, different)
    else:
        _print_verdict(graphs, eager, different, console)
    if different:
        raise typer.Exit(EXIT_DIFFERENT)


def _config(model: str, device: str) -> EngineConfig:
    """Small limits, so that the demo captures in seconds and still pads, breaks and falls back."""
    return EngineConfig(
        model=model,
        device=device,
        dtype="float32",  # in a shorter one, two tokens may tie, and padding then decides which of them wins
        max_model_len=512,
        max_num_reqs=8,
        max_num_batched_tokens=256,
        kv_tokens=4096,
        decode_sizes=(1, 2, 4, 8),
        token_sizes=(48, 96),
    )


def _play(config: EngineConfig, arrivals: Sequence[Arrival], progress: ProgressReporter, board: Board) -> Played:
    head_start(config.device)  # before torch is imported
    from ostinato import LLM

    with LLM(config=config, progress=progress) as llm:
        with board:
            answers, step_seconds = play(llm, arrivals, board)
        return Played(answers=answers, stats=llm.stats(), step_seconds=step_seconds)


def _print_run(run: Played, console: Console) -> None:
    from ostinato.cli.tables import dispatch_table, graphs_line

    console.print()
    for answer in run.answers:
        print_prompt(answer.prompt)
        print_text(answer.text)
    console.print(dispatch_table(run.stats["dispatch"]))
    console.print(graphs_line(run.stats["graphs"]), highlight=False)


def _print_verdict(graphs: Played, eager: Played, different: Sequence[int], console: Console) -> None:
    times = f"graphs {graphs.median_step_ms:.1f} ms, eager {eager.median_step_ms:.1f} ms"
    console.print(f"median step: {times}", highlight=False)
    if graphs.stats["config"]["device"] == "cpu":
        console.print("(on a CPU graphs are simulated, to check them: they cost time there)", highlight=False)
    if not different:
        tokens = f"{graphs.num_tokens} tokens of {len(graphs.answers)} requests"
        console.print(f"[bold green]graph output equals eager[/]: {tokens} are the same", highlight=False)
        return
    numbers = ", ".join(map(str, different))
    console.print(f"[bold red]graph output differs from eager[/] in requests {numbers}", highlight=False)


def _print_json(graphs: Played, eager: Played, different: Sequence[int]) -> None:
    print_json(
        {
            "outputs": [answer.to_dict() for answer in graphs.answers],
            "equals_eager": not different,
            "different": list(different),
            "median_step_ms": {"graphs": graphs.median_step_ms, "eager": eager.median_step_ms},
            **{name: graphs.stats[name] for name in ("dispatch", "graphs", "config")},
        }
    )
