"""The registry of scenarios, and the way to run one: check, look up, measure, write.

A scenario is a module of `bench.scenarios` with ``check(run)``, which raises before anything is measured, and
``measure(run)``, which adds rows. A row that fails keeps the others.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ostinato.bench.config import BenchConfig
from ostinato.bench.evidence import Evidence, output_path
from ostinato.bench.peers.registry import PEERS, check_peers
from ostinato.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["SCENARIOS", "Scenario", "find_scenario", "run_bench"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a scenario measures, how often, which settings of `BenchConfig` it reads, and whether answers are made text
    while it measures, by a made-up tokenizer where the model has none."""

    summary: str
    repeats: int
    options: frozenset[str]
    has_text: bool = False


def _scenario(summary: str, repeats: int, *options: str, has_text: bool = False) -> Scenario:
    return Scenario(summary=summary, repeats=repeats, options=frozenset({"repeats", *options}), has_text=has_text)


SCENARIOS: Final[dict[str, Scenario]] = {
    "decode": _scenario(
        "time per output token, by mode and batch", 3, "modes", "batches", "prompt_tokens", "peers", "is_profiled",
        has_text=True,
    ),
    "prefill": _scenario(
        "time to first token, by mode and prompt length", 9, "modes", "tokens", "peers", "is_profiled", has_text=True
    ),
    "surface": _scenario(
        "every way to make graphs, by tokens and requests", 5, "variants", "tokens", "requests", has_text=True
    ),
    "segments": _scenario("host time of a replay, by segments and checks", 100, "tokens", "segments", "peers"),
    "checks": _scenario("host time of the decision and the guards before a replay, by level", 20),
    "dispatch": _scenario("how far decisions by measured cost are off the best, for every size", 1, "modes", "tokens"),
    "executables": _scenario("memory that shared executables save, and what a switch costs", 50, "prompt_tokens"),
    "startup": _scenario("seconds from process start to first token, by stage", 3, "modes", "prompt_tokens", "is_cold"),
    "background": _scenario(
        "hit rate and latencies under load while graphs are captured, beside capture first", 1, "modes", "rates",
        "prompt_tokens", "output_tokens",
    ),
    "serve": _scenario(
        "requests at a rate or from a trace: throughput and latencies", 1, "modes", "rates", "num_requests",
        "prompt_tokens", "output_tokens", "trace", "trace_speed", "ttft_goal_ms", "tpot_goal_ms",
        has_text=True,
    ),
}  # fmt: skip


def find_scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UnknownNameError: there is none; lists those that there are.
    """
    if name not in SCENARIOS:
        raise UnknownNameError.of("scenario", name, list(SCENARIOS))
    return SCENARIOS[name]


def run_bench(
    name: str,
    config: BenchConfig,
    *,
    json_out: str | None = None,
    plot_out: str | None = None,
    command: list[str] | None = None,
    progress: ProgressReporter | None = None,
    say: Callable[[str], None] = lambda _text: None,
) -> Evidence:
    """Measure; the evidence, which is in ``json_out`` too.

    Args:
        name: of the scenario.
        json_out: file, or folder for a file with the usual name.
        plot_out: the same for a picture, which the caller draws when all is measured (`plots.draw`).
        command: as typed; the process's own by default.
        progress: told of loading and capturing.
        say: told of each row.

    Raises:
        OstinatoError: a setting is wrong, does not belong to the scenario, or the output cannot be written. Errors of
            single rows are in `Evidence.failed` instead.
    """
    scenario = find_scenario(name)
    _check_options(name, scenario, config)
    peers = config.peers or ()
    check_peers(peers, scenario=name)

    from ostinato.bench.environment import command_line, versions
    from ostinato.bench.host_pace import host_pace_us
    from ostinato.bench.made_up_text import made_up_tokenizer
    from ostinato.bench.model_costs import find_target
    from ostinato.bench.run import Run
    from ostinato.runtime import hardware_name

    target = find_target(config.engine)
    hardware, day = hardware_name(target.device), datetime.date.today().isoformat()
    model = config.engine.model
    naming = {"bench": name, "model": model, "hardware": hardware, "day": day}
    path = None if json_out is None else output_path(json_out, **naming)
    plot_path = None if plot_out is None else output_path(plot_out, **naming, suffix="png")
    if path is not None and plot_path is not None and path.resolve() == plot_path.resolve():
        raise ConfigError(f"evidence and plot are to be the same file {path}", fix="name two files, or a folder")
    repeats = config.repeats or scenario.repeats
    evidence = Evidence(
        bench=name,
        date=day,
        model=model,
        hardware=hardware,
        versions=versions(target.device, tuple(PEERS[peer].package for peer in peers)),
        command=command_line() if command is None else command,
        repeats=repeats,
        path=path,
        plot_path=plot_path,
        say=say,
        pace=host_pace_us,
        config={"asked": {key: str(value) if key == "trace" else value for key, value in config.given().items()}},
    )
    run = Run(
        config=config,
        target=target,
        evidence=evidence,
        repeats=repeats,
        progress=progress,
        tokenizer=made_up_tokenizer(target, evidence) if scenario.has_text else None,
    )
    module = import_module(f"ostinato.bench.scenarios.{name}")
    module.check(run)
    evidence.save()
    module.measure(run)
    evidence.save()
    return evidence


def _check_options(name: str, scenario: Scenario, config: BenchConfig) -> None:
    for option in sorted(set(config.given()) - scenario.options):
        users = [other for other, it in SCENARIOS.items() if option in it.options]
        fix = f"leave it out; it belongs to {', '.join(users)}"
        raise ConfigError(f"{name} has no use for {option}", fix=fix, field=option)
