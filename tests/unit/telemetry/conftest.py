"""Events of every kind that counts, for tests of what sinks make of them."""

import pytest

from ostinato.telemetry import (
    CaptureFailed,
    EngineDied,
    GraphCaptured,
    KeyQuarantined,
    KeysPlanned,
    LoadAboveCeiling,
    ReceiverFailed,
    RequestPreempted,
    StepDispatched,
    StepFailed,
    StepFinished,
)

KEYS = ("FULL tokens=8", "FULL tokens=4", 'odd "key"\\with\nescapes')


@pytest.fixture
def traffic():
    """Three keys, one of which is hit; hundreds of steps; one failure of each kind."""
    ceiling = {"num_over": 128, "num_recent": 256, "largest_tokens": 8, "largest_reqs": None, "largest_live_reqs": None}
    events = [
        KeysPlanned(keys=KEYS, largest_tokens=8),
        *(GraphCaptured(key=key, seconds=0.1, segments=1, nodes=7) for key in KEYS[:2]),
        CaptureFailed(key=KEYS[2], error="boom"),
        RequestPreempted(request_id="a", computed_tokens=3),
    ]
    decode = {"runtime_mode": "FULL", "bucket": "4/256", "reason": "PADDED"}
    for number in range(300):
        events += [
            StepDispatched(
                **decode,
                live_tokens=1 + number % 3,
                padded_tokens=4,
                is_decode=True,
                live_reqs=1 + number % 3,
                key=KEYS[1],
                launch_seconds=0.1,
            ),
            StepFinished(**decode, seconds=1 / 3),
            StepDispatched(
                runtime_mode="EAGER",
                bucket="-",
                reason="OVER_LARGEST",
                live_tokens=70,
                padded_tokens=70,
                launch_seconds=1e-7,
            ),
        ]
    return [
        *events,
        KeyQuarantined(key=KEYS[0], found_by="qualify", what="differs", where="here"),
        StepFailed(error="boom", num_reqs=2, num_in_a_row=1),
        EngineDied(error="gone", num_reqs=3),
        ReceiverFailed(request_id="a", error="boom"),
        LoadAboveCeiling(**ceiling, smallest_live_tokens=9, largest_live_tokens=70, fix=""),
    ]
