"""The mode matrix, cell by cell, and a reason for each change."""

import dataclasses
import itertools

import pytest

from ostinato.runtime.config import GraphConfig
from ostinato.runtime.dispatch import ModeRequest, ResolvedMode, resolve_mode
from ostinato.runtime.keys import CaptureSupport, Compiler, Mode, Partition, Phase, RuntimeMode
from ostinato.runtime.planning import plan_keys

NEVER, SINGLE, UNIFORM, ALWAYS = CaptureSupport
NONE, PIECE, FULL, DECODE, BOTH, AUTO = Mode

WITH_REQUESTS = {
    # asked: (NEVER, SINGLE, UNIFORM, ALWAYS)
    NONE: (NONE, NONE, NONE, NONE),
    PIECE: (PIECE, PIECE, PIECE, PIECE),
    FULL: (PIECE, BOTH, BOTH, FULL),
    DECODE: (PIECE, DECODE, DECODE, DECODE),
    BOTH: (PIECE, BOTH, BOTH, BOTH),
    AUTO: (PIECE, BOTH, BOTH, BOTH),
}
WITHOUT_REQUESTS = {
    NONE: (NONE, NONE, NONE, NONE),
    PIECE: (PIECE, PIECE, PIECE, PIECE),
    FULL: (PIECE, PIECE, PIECE, FULL),
    DECODE: (PIECE, PIECE, PIECE, FULL),
    BOTH: (PIECE, PIECE, PIECE, PIECE),
    AUTO: (PIECE, PIECE, PIECE, FULL),
}
CELLS = [
    (knows, asked, support, row[support])
    for knows, rows in ((True, WITH_REQUESTS), (False, WITHOUT_REQUESTS))
    for asked, row in rows.items()
    for support in CaptureSupport
]


@pytest.mark.parametrize(("knows_requests", "asked", "support", "mode"), CELLS)
def test_modes(knows_requests, asked, support, mode):
    found = resolve_mode(ModeRequest(mode=asked, support=support, knows_requests=knows_requests))
    assert (found.asked, found.mode) == (asked, mode)
    assert (found.reason == "as asked") == (asked is mode)


@pytest.mark.parametrize("asked", [FULL, DECODE, BOTH, AUTO])
def test_drafts_need_more_than_single_token_decode(asked):
    request = {"mode": asked, "knows_requests": True, "uniform_query_len": 3}
    assert resolve_mode(ModeRequest(support=SINGLE, **request)).mode is PIECE
    assert resolve_mode(ModeRequest(support=UNIFORM, **request)).mode in (DECODE, BOTH)


@pytest.mark.parametrize("support", list(CaptureSupport))
@pytest.mark.parametrize("asked", list(Mode))
def test_full_graphs_of_small_mixed_batches_need_attention_that_is_always_capturable(asked, support):
    found = resolve_mode(ModeRequest(mode=asked, support=support, knows_requests=True, full_mixed_max_tokens=512))
    expected = 512 if found.mode is BOTH and support is ALWAYS else 0
    assert found.full_mixed_max_tokens == expected
    if found.mode is BOTH and support is not ALWAYS:
        assert "small mixed batches run piecewise" in found.reason


@pytest.mark.parametrize(("partition", "compiler"), list(itertools.product(Partition, Compiler)))
def test_a_device_compiles_as_asked_and_a_cpu_cannot(partition, compiler):
    asked = {"mode": FULL, "partition": partition, "compiler": compiler}
    cuda = resolve_mode(ModeRequest(device_type="cuda", **asked))
    assert (cuda.partition, cuda.compiler, cuda.reasons) == (partition, compiler, ())
    cpu = resolve_mode(ModeRequest(device_type="cpu", **asked))
    assert cpu.partition is (Partition.FX if partition is Partition.INDUCTOR else partition)
    assert cpu.compiler is Compiler.NONE
    assert len(cpu.reasons) == (partition is Partition.INDUCTOR) + (compiler is Compiler.INDUCTOR)


def test_adapters_have_no_graphs():
    found = resolve_mode(ModeRequest(mode=AUTO, knows_requests=True, num_active_loras=2))
    assert found.mode is NONE
    assert found.reasons == ("no graph is planned for 2 active adapters: such steps run eagerly",)


EAGER, PIECES, ONE = RuntimeMode.EAGER, RuntimeMode.PIECEWISE, RuntimeMode.FULL
STEPS = {  # of the resolved mode: decode, mixed; the table of modes in the README and in docs/modes.md
    NONE: (EAGER, EAGER),
    PIECE: (PIECES, PIECES),
    FULL: (ONE, ONE),
    DECODE: (ONE, EAGER),
    BOTH: (ONE, PIECES),
}


# --- the whole product ------------------------------------------------------------------------------

PRODUCT = [
    ModeRequest(
        mode=mode,
        partition=partition,
        compiler=compiler,
        support=support,
        uniform_query_len=query_len,
        num_active_loras=num_loras,
        knows_requests=knows_requests,
        device_type=device_type,
    )
    for mode, partition, compiler, support, query_len, num_loras, knows_requests, device_type in itertools.product(
        Mode, Partition, Compiler, CaptureSupport, (1, 2, 5), (0, 1, 3), (True, False), ("cuda", "cpu", "xpu")
    )
]


def test_the_product_is_whole():
    assert len(PRODUCT) == len(set(PRODUCT)) == 6 * 3 * 2 * 4 * 3 * 3 * 2 * 3


def test_each_phase_runs_as_the_mode_in_force_says():
    def is_so(request, found):
        return tuple(found.runtime_mode(phase) for phase in (Phase.DECODE, Phase.MIXED)) == STEPS[found.mode]

    assert not every(is_so)


def test_a_phase_never_runs_otherwise_than_the_asked_mode_says_without_a_reason():
    def is_told(request, found):
        asked = STEPS.get(request.mode)  # auto promises nothing
        return asked in (None, tuple(map(found.runtime_mode, Phase))) or bool(found.reasons)

    assert not every(is_told)


def test_phases_are_alike_where_requests_are_unknown():
    assert not every(
        lambda request, found: request.knows_requests or len({found.runtime_mode(phase) for phase in Phase}) == 1
    )


def test_steps_with_adapters_are_eager_in_every_phase_and_say_so():
    def is_eager(request, found):
        if not request.num_active_loras or request.mode is NONE:
            return "adapter" not in found.reason
        told = f"{request.num_active_loras} active adapters" in found.reasons[0]
        return told and {found.runtime_mode(phase) for phase in Phase} == {EAGER}

    assert not every(is_eager)


def changes_of(request, found):
    return [
        name
        for name, asked, got in (
            ("mode", request.mode, found.mode),
            ("partition", request.partition, found.partition),
            ("compile", request.compiler, found.compiler),
        )
        if asked is not got
    ]


def every(check):
    """The requests of the product for which ``check(request, resolved)`` does not hold."""
    return [request for request in PRODUCT if not check(request, resolve_mode(request))]


def test_what_was_asked_is_told():
    assert not every(lambda request, found: found.asked is request.mode)


def test_auto_is_never_left():
    assert not every(lambda request, found: found.mode is not AUTO)


def test_it_is_a_pure_function():
    assert not every(lambda request, found: found == resolve_mode(request))


def test_what_is_resolved_resolves_to_itself():
    def again(request, found):
        settled = dataclasses.replace(request, mode=found.mode, partition=found.partition, compiler=found.compiler)
        twice = resolve_mode(settled)
        return (twice.mode, twice.partition, twice.compiler, twice.reasons) == (
            found.mode,
            found.partition,
            found.compiler,
            (),
        )

    assert not every(again)


def test_a_reason_for_every_change_and_no_other():
    assert not every(lambda request, found: len(found.reasons) == len(changes_of(request, found)))
    assert not every(lambda request, found: all(found.reasons) and len(set(found.reasons)) == len(found.reasons))
    assert not every(lambda request, found: (found.reason == "as asked") == (not changes_of(request, found)))


def test_changes_are_told_by_setting():
    def are_told(request, found):
        by_setting = {change.setting: change for change in found.changes}
        asked = {"mode": request.mode, "partition": request.partition, "compile": request.compiler}
        now = {"mode": found.mode, "partition": found.partition, "compile": found.compiler}
        told = [(asked[name], now[name]) for name in by_setting]
        return (
            list(by_setting) == changes_of(request, found)
            and told == [(change.asked, change.resolved) for change in found.changes]
            and found.mode_reason == (by_setting["mode"].why if "mode" in by_setting else "as asked")
        )

    assert not every(are_told)


def test_reasons_name_what_they_are_about():
    def names(request, found):
        text = found.reason
        changed = changes_of(request, found)
        return ("partition" in text) == ("partition" in changed) and ("compile" in text) == ("compile" in changed)

    assert not every(names)


def test_breakable_is_never_given_up():
    """It needs no compiler and no support from attention."""
    assert not every(
        lambda request, found: request.partition is not Partition.BREAKABLE or found.partition is Partition.BREAKABLE
    )


def wants_graphs(request):
    return request.mode is not NONE and not request.num_active_loras


def test_attention_that_no_graph_may_hold_still_gets_piecewise_graphs():
    assert not every(
        lambda request, found: request.support is not NEVER or not wants_graphs(request) or found.mode is PIECE
    )


def test_no_graphs_are_made_where_none_were_asked_and_some_where_they_were():
    assert not every(lambda request, found: (found.mode is NONE) == (not wants_graphs(request)))


def test_full_graphs_hold_only_what_attention_bears():
    def is_borne(request, found):
        if found.mode is FULL:
            return request.support is ALWAYS
        if found.mode in (DECODE, BOTH):
            return request.support >= (SINGLE if request.uniform_query_len == 1 else UNIFORM)
        return True

    assert not every(is_borne)


def test_decode_means_nothing_where_requests_are_unknown():
    assert not every(lambda request, found: request.knows_requests or found.mode not in (DECODE, BOTH))


def test_more_support_never_gives_less():
    """As measured by the steps that run in full graphs: none, decode, all."""
    reach = {NONE: 0, PIECE: 0, DECODE: 1, BOTH: 1, FULL: 2}
    for request in PRODUCT:
        if request.mode is NONE:
            continue
        found = [resolve_mode(dataclasses.replace(request, support=support)) for support in CaptureSupport]
        assert [reach[f.mode] for f in found] == sorted(reach[f.mode] for f in found), request


def test_only_a_cpu_and_breakable_segments_do_without_inductor():
    def keeps(request, found):
        if request.device_type == "cpu":
            return found.partition is not Partition.INDUCTOR and found.compiler is Compiler.NONE
        has_nothing_to_compile = found.mode is PIECE and found.partition is Partition.BREAKABLE
        compiler = Compiler.NONE if has_nothing_to_compile else request.compiler
        return (found.partition, found.compiler) == (request.partition, compiler)

    assert not every(keeps)


ENGINE = {"knows_requests": True}


@pytest.mark.parametrize(
    ("request_", "mode", "partition", "compiler", "words"),
    [
        # asked for nothing special: what users meet
        (ModeRequest(mode=AUTO, support=ALWAYS, **ENGINE), BOTH, "breakable", "none", "supports ALWAYS"),
        (ModeRequest(mode=AUTO, support=UNIFORM, **ENGINE), BOTH, "breakable", "none", "supports UNIFORM_BATCH"),
        (ModeRequest(mode=AUTO, support=NEVER, **ENGINE), PIECE, "breakable", "none", "cannot run inside a graph"),
        (ModeRequest(mode=AUTO), FULL, "breakable", "none", "one graph a size is the fastest"),
        (ModeRequest(mode=AUTO, support=SINGLE), PIECE, "breakable", "none", "no batch is known to be a decode"),
        # the engine with drafts
        (
            ModeRequest(mode=DECODE, support=SINGLE, uniform_query_len=4, **ENGINE),
            PIECE,
            "breakable",
            "none",
            "decode brings 4 tokens a request",
        ),
        (ModeRequest(mode=DECODE, support=UNIFORM, uniform_query_len=4, **ENGINE), DECODE, "breakable", "none", "as"),
        # full with attention that cannot take mixed batches
        (ModeRequest(mode=FULL, support=UNIFORM, **ENGINE), BOTH, "breakable", "none", "mixed batches run piecewise"),
        (ModeRequest(mode=FULL, support=UNIFORM), PIECE, "breakable", "none", "no batch is known to be a decode"),
        # callables that declare no requests
        (ModeRequest(mode=DECODE), FULL, "breakable", "none", "every batch is alike"),
        (ModeRequest(mode=BOTH), PIECE, "breakable", "none", "no batch is a decode"),
        # partitions and compilers
        (
            ModeRequest(mode=PIECE, partition=Partition.INDUCTOR, device_type="cpu"),
            PIECE,
            "fx",
            "none",
            "partition inductor is fx: on a CPU",
        ),
        (
            ModeRequest(mode=FULL, compiler=Compiler.INDUCTOR, device_type="cpu"),
            FULL,
            "breakable",
            "none",
            "compile inductor is none: simulated graphs",
        ),
        (
            ModeRequest(mode=AUTO, partition=Partition.INDUCTOR, compiler=Compiler.INDUCTOR, support=NEVER, **ENGINE),
            PIECE,
            "inductor",
            "inductor",
            "cannot run inside a graph",
        ),
        (ModeRequest(mode=NONE, partition=Partition.INDUCTOR), NONE, "inductor", "none", "as asked"),
        # adapters
        (ModeRequest(mode=FULL, num_active_loras=1, **ENGINE), NONE, "breakable", "none", "for 1 active adapters"),
        (ModeRequest(mode=NONE, num_active_loras=1), NONE, "breakable", "none", "as asked"),
    ],
)
def test_interesting_rows(request_, mode, partition, compiler, words):
    found = resolve_mode(request_)
    assert (found.mode, found.partition, found.compiler) == (mode, partition, compiler)
    assert words in found.reason


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.AUTO])
def test_graphs_are_planned_of_the_runtime_modes_that_are_told(mode):
    """What loads a compiler goes by this: of a runtime mode that is left out no key may be planned."""
    config = GraphConfig(sizes=(4, 8), decode_sizes=(2,), max_num_reqs=4)
    told = ResolvedMode(asked=mode, mode=mode, partition=Partition.FX, compiler=Compiler.INDUCTOR).runtime_modes
    planned = plan_keys(config, mode, max_size=8, full_mixed_max_tokens=8)
    assert {key.runtime_mode for key in planned} == set(told)


@pytest.mark.parametrize(
    ("partition", "compiler", "is_traced", "is_compiled"),
    [
        (Partition.BREAKABLE, Compiler.NONE, False, False),
        (Partition.BREAKABLE, Compiler.INDUCTOR, True, True),
        (Partition.FX, Compiler.NONE, True, False),
        (Partition.FX, Compiler.INDUCTOR, True, True),
        (Partition.INDUCTOR, Compiler.NONE, True, True),
    ],
)
def test_what_is_traced_runs_twice_and_what_is_compiled_need_not_have_the_bits_of_eager(
    partition, compiler, is_traced, is_compiled
):
    mode = ResolvedMode(asked=Mode.AUTO, mode=Mode.FULL_AND_PIECEWISE, partition=partition, compiler=compiler)
    assert (mode.is_traced, mode.is_compiled) == (is_traced, is_compiled)
