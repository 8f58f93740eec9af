"""Which sizes to capture: ladders, plans from traffic, and the list of keys."""

from ostinato.runtime.planning.capture_order import next_to_capture
from ostinato.runtime.planning.cost_curve import CostCurve
from ostinato.runtime.planning.drift import PlannedSizes, SizeChange, SizeSuggestion, suggest_change, suggest_sizes
from ostinato.runtime.planning.histogram import TrafficHistogram
from ostinato.runtime.planning.ladders import decode_ladder, token_ladder
from ostinato.runtime.planning.limits import largest_size
from ostinato.runtime.planning.optimise import SizeChoices, SizePlan, judge_sizes, optimise_sizes
from ostinato.runtime.planning.plan import largest_first, plan_keys
from ostinato.runtime.planning.presets import PRESETS, preset_ladder, preset_within
from ostinato.runtime.planning.pricing import GraphPrice, affordable_graphs, shared_out
from ostinato.runtime.planning.traffic_plan import plan_traffic

__all__ = [
    "PRESETS",
    "CostCurve",
    "GraphPrice",
    "PlannedSizes",
    "SizeChange",
    "SizeChoices",
    "SizePlan",
    "SizeSuggestion",
    "TrafficHistogram",
    "affordable_graphs",
    "decode_ladder",
    "judge_sizes",
    "largest_first",
    "largest_size",
    "next_to_capture",
    "optimise_sizes",
    "plan_keys",
    "plan_traffic",
    "preset_ladder",
    "preset_within",
    "shared_out",
    "suggest_change",
    "suggest_sizes",
    "token_ladder",
]
