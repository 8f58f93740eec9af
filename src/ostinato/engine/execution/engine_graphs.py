"""`EngineGraphs`: an executor that is ready to serve, and what is done about its graphs besides running steps.

The order of a start: what the last start says, the executor, the weights' arrival, capture now or later, costs.
Afterwards it knows which graphs are still to come, what to do when it shall sleep or get other weights, and keeps for
the next start what this one learned. Owned by `LLM`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ostinato.engine.execution.background import BackgroundCapture
from ostinato.engine.execution.captures import Captures
from ostinato.engine.execution.costs import measure_costs, unmeasured_keys
from ostinato.engine.execution.executor import Executor
from ostinato.engine.execution.graph_settings import in_force, why_sizes_end
from ostinato.engine.execution.loading import LoadedModel
from ostinato.engine.execution.manifest import CaptureManifest
from ostinato.engine.execution.rehearsal import rehearse
from ostinato.engine.execution.reload import EngineWeights
from ostinato.engine.execution.shadow_turns import ShadowTurns
from ostinato.engine.execution.sleep import EngineSleep, SleepReport
from ostinato.engine.execution.stored_costs import StoredCosts
from ostinato.engine.weights import ProgressReporter
from ostinato.engine.weights.progress import reporting
from ostinato.errors import AsleepError, ConfigError, RuntimeStateError
from ostinato.runtime import GraphKey, ResizeReport
from ostinato.telemetry import Sink

__all__ = ["EngineGraphs"]

logger = logging.getLogger("ostinato")


class EngineGraphs:
    """Opens an executor as its config asks.

    Args:
        loaded: from `load_model`. Its weights may be on their way; they are there when this is made.
        sinks: receivers of telemetry events.
        progress: told of warm-up, capture and measuring.

    Raises:
        ConfigError: a file of costs or the manifest cannot be used, or costs would have to be measured before there are
            graphs.
        ForeignCostsError, OutOfMemoryError: see `StoredCosts`, `Executor`, `LoadedModel.await_weights`.
    """

    def __init__(self, loaded: LoadedModel, *, sinks: Sequence[Sink], progress: ProgressReporter | None) -> None:
        self._config = config = loaded.config
        self._costs = StoredCosts(config, loaded.device, loaded.model.config)
        self.partition = self._costs.name
        """How pieces are made, as files of costs name it."""
        self._manifest: CaptureManifest | None = None
        self.reasons: dict[str, str] = {}
        """Why things are as they are, by setting."""
        if config.manifest is not None:
            self._manifest, why_empty = CaptureManifest.open(loaded)
            self.reasons["manifest"] = why_empty or "used: what went wrong at the last start is left out"
        self.executor = Executor(loaded, sinks=sinks)
        self.config, changed = in_force(config, self.executor.graphed.mode)
        """As the runtime has resolved it."""
        self.reasons |= changed
        self.captures = Captures(self.executor)
        self.background: BackgroundCapture | None = None
        """Captures what is pending; None where all was captured at first and stays."""
        self.shadow = ShadowTurns(self.executor, share=config.shadow_share) if config.shadow_every else None
        """Compares the steps that a shadow keeps."""
        try:
            self._open(loaded, progress)
        except BaseException:
            self.executor.close()
            raise
        self.reasons |= why_sizes_end(config, self.executor.num_pages - 1)
        self.sleep = EngineSleep(self.captures)
        self.weights = EngineWeights(loaded, self.executor)
        self._save()

    def resize(
        self,
        *,
        sizes: tuple[int, ...] | None,
        decode_sizes: tuple[int, ...] | None,
        on_key: Callable[[GraphKey], None] | None,
    ) -> ResizeReport:
        """See `Captures.resize`. Costs of new sizes are estimated from those beside them, and that is said."""
        report = self.captures.resize(sizes=sizes, decode_sizes=decode_sizes, on_key=on_key)
        costs = self.executor.graphed.costs
        unmeasured = [] if costs is None else unmeasured_keys(self.executor, costs)
        if unmeasured:
            self._tell_of_costs(
                f"no cost was measured of {_some(unmeasured)}, captured since the start; it is estimated"
            )
        return report

    def fall_asleep(self) -> SleepReport:
        """Keep what was learned, then give graphs and memory back; see `EngineSleep.begin`."""
        self._save()
        return self.sleep.begin()

    def require_ready(self) -> None:
        """Raise unless requests can be answered.

        Raises:
            AsleepError: it sleeps.
            RuntimeStateError: a reload of weights broke off while they were written.
        """
        if self.sleep.is_asleep:
            raise AsleepError("this LLM sleeps: its graphs were given back", fix="call wake() first")
        if not self.weights.are_whole:
            raise RuntimeStateError(
                "a reload broke off while weights were written: they are of two models",
                fix="call reload_weights() again",
            )

    def close(self) -> None:
        """Keep what was learned, and give the executor's memory back."""
        if not self.sleep.is_asleep:  # else it was kept, and there are no graphs now to learn from
            self._save()
        self.executor.close()

    def _open(self, loaded: LoadedModel, progress: ProgressReporter | None) -> None:
        config, manifest, executor = self._config, self._manifest, self.executor
        graphed = executor.graphed
        if manifest is not None:
            graphed.leave_out(manifest.left_out(graphed.pending), why=f"says {config.manifest}")
        if config.capture == "background":
            self.captures.start_later(graph_bytes=0 if manifest is None else manifest.graph_bytes(graphed.pending))
            self._await_weights(loaded)
            traffic = None if manifest is None else manifest.traffic
            self.background = BackgroundCapture(self.captures, share=config.capture_share, traffic=traffic)
        else:
            self._await_weights(loaded)
            if config.on_moved == "recapture":
                self.background = BackgroundCapture(self.captures, share=config.capture_share)
            with reporting(progress, "warm-up and capture", 2 * len(graphed.pending) or None, "passes") as bar:
                self.captures.start(on_key=lambda _key: bar.advance(1))
        if config.dispatch == "measured":
            self._settle_costs(progress)

    def _await_weights(self, loaded: LoadedModel) -> None:
        """Nothing before this needs their values, and all after it may: captures, costs, steps. Copies end here, since
        other threads may not wait for the device while a capture runs."""
        config = self._config
        has_graphs_first = config.capture == "eager" and config.mode != "none"  # whose warm-up loads what steps need
        if loaded.copies is not None and loaded.device.type == "cuda" and not has_graphs_first:
            rehearse(self.executor)
        loaded.await_weights()

    def _settle_costs(self, progress: ProgressReporter | None) -> None:
        graphed, stored = self.executor.graphed, self._costs.table
        unmeasured = [] if stored is None else unmeasured_keys(self.executor, stored)
        if unmeasured:
            what = f"{self._config.costs} was measured with other sizes: it has no cost of {_some(unmeasured)}"
            what += "; what is between its sizes is estimated" if graphed.pending else "; measured again"
            self._tell_of_costs(what)
        if stored is not None and (graphed.pending or not unmeasured):
            graphed.use_costs(stored)
        elif graphed.pending:
            raise ConfigError(
                "there are no measured costs, and no graphs yet to measure",
                fix='name a file of costs that were measured before, or use capture="eager"',
            )
        elif graphed.plans:
            with reporting(progress, "measure costs", None, "turns") as bar:
                overlap = bool(self._config.overlap)
                measured = measure_costs(self.executor, overlap=overlap, on_step=lambda: bar.advance(1))
            try:
                self._costs.save(measured)
            except ConfigError as error:
                if stored is None:
                    raise
                logger.warning("%s", error)  # a file that need not have been writable: the next start measures again

    def _tell_of_costs(self, what: str) -> None:
        logger.warning("%s", what)
        self.reasons["costs"] = what

    def _save(self) -> None:
        if self._manifest is None:
            return
        self._manifest.learn(self.captures, self.weights)
        try:
            self._manifest.save(Path(self._config.manifest or ""))
        except ConfigError as error:  # it would save time at the next start; nothing at hand is lost for it
            logger.warning("%s", error)


def _some(keys: Sequence[GraphKey]) -> str:
    return f"{keys[-1]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
